"""A real single-node Kubernetes for development and tests, on a bare Debian machine.

Standard library only: it has to run before any virtual environment exists.
`dev/run COMMAND` starts it; dev/README.md says what each command does.
"""
