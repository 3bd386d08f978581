"""Where the time goes: what is joined out of the tables of several tools. Pure functions of tables."""
