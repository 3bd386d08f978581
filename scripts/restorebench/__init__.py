"""`scripts/bench restore`: profrun is killed on a played machine, again and again, and the machine has to be as it was;
`scripts/bench forms`: what it says on each form of one."""
