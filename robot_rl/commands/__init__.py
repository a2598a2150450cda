"""The words of the command line: `table` names the function behind each."""
