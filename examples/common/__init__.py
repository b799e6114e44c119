"""Common to the experiments: resumable runs, text, models, tables."""
