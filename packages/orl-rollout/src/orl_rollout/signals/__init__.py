"""SIGINT, SIGTERM and SIGHUP, never lost; and child processes that end with this one."""
