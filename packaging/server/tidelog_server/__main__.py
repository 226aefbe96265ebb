"""`python -P -m tidelog_server`: the command, run by an explicit interpreter."""

from tidelog_server import main

main()
