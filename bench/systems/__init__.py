"""What is measured: one module a program, all with the same face (`protocol.System`), each run in its own process."""
