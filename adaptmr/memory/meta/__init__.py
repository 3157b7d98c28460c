"""What a team remembers across tasks: how tasks went, what was learnt, which tasks are alike, which searches work."""
