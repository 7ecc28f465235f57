"""The subcommands of `fwgen`, a module each: `add(subparsers)` and what runs it."""
