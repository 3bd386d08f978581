"""Programs of a few lines that profrun starts beside a target: stand-alone, standard library only, any Python 3."""
