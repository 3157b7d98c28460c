"""The sections of a report: each shows a part of an experiment's results and writes it to the run folder."""
