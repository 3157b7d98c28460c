"""Tables, figures, reports, and the folder that a run leaves behind."""
