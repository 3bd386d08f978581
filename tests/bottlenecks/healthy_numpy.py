"""Solves systems of equations with NumPy.

truth: healthy
"""

import numpy

random = numpy.random.default_rng(1)
worst = 0.0
for _ in range(120):
    matrix = random.standard_normal((400, 400)) + 40 * numpy.eye(400)
    wanted = random.standard_normal(400)
    solved = numpy.linalg.solve(matrix, wanted)
    worst = max(worst, float(numpy.abs(matrix @ solved - wanted).max()))
print("solved", worst < 1e-6)
