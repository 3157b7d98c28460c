"""Was the answer right? Judges, how often they are wrong, and the accuracy that is left."""
