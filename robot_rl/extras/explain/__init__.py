"""Why a run does not learn."""
