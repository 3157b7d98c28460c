"""The memory of a team of agents on a task: what each knows for itself, and what all of them share."""
