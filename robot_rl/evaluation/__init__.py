"""How good is the policy: rollouts, their statistics, and the report of a run."""
