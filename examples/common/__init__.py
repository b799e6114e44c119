"""What the experiments share: runs that resume, text, a recurrent model, beam search, tables."""
