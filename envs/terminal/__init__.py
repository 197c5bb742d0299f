"""Terminal: tasks solved by shell commands in a sandbox, checked by tests in another one."""
