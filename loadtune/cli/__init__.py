"""The ``loadtune`` command: a module a subcommand."""
