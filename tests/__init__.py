"""unit/ needs nothing, contract/ the embedded server, process/ real processes, live/ an account; perf/ measures."""
