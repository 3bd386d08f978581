"""The benchmark of the diagnosis: does a report name the one thing to mend, and is it silent where nothing is wrong?"""
