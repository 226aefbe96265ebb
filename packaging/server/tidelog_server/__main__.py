"""`python -P -m tidelog_server`: the command, for an interpreter that is named by its path."""

from tidelog_server import main

main()
