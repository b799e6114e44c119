"""Common to the experiments: resumable runs, text, models, beam search, tables."""
