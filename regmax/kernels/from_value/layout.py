"""Places in the jobs, and in the rows, of :mod:`.steps`; without numba."""

Z, MASK, VALUE, GRADIENT, HESSIAN, STATE, NUMBERS, POINTS, UNITS, STEEP, FINAL = range(11)
"""Places in a job. Its arrays are z and the mask; Ω, ∇Ω and products with ∇²Ω where each row asked
for them; the vectors and numbers that rows keep; the points that certificates ask for. Then how
many products there are, whether steps are in log y, and what the rows are given."""
STEPPED, STEPPED_AT_ALL, ASKED, CERTIFIED = range(4)
"""What rows are given: Ω at one point, or at those of their certificates, for a step or for the
certificate; ``ASKED`` and ``CERTIFIED`` are for rows whose answer others found: the points of the
certificate of TRIAL, from Ω at Y, and the certificate alone."""
Y, TRIAL, WAY, BEFORE, START, TILT, VECTORS = range(7)
"""Vectors of a row: y; where Ω is evaluated next; the direction; ∇Ω at y and at the barycentre; a
subgradient of a penalty, by which the scores are reduced."""
STATUS, SLOPE, PART, LENGTH, SPREAD, STEP, VALUE_BEFORE, VALUE_START, BOUND, GAP, LOW = range(11)
MOVED, KEPT = 11, 12
"""Numbers of a row, ``KEPT`` in all."""
GOING, READY, LOST, DONE = 0.0, 1.0, 2.0, 3.0
"""STATUS: the row asks for one point, or for those of its certificate, or for none."""
SIDES, ENDS, WAYS = 8, 4, 6
HALF, SECANTS, LAST, SEGMENTS = 1, 2, 2 + WAYS, 3 + WAYS
COUNT = SEGMENTS + ENDS * SIDES
AMONG = COUNT
"""The points of a certificate: y, one half-way to the barycentre of the support, those next to y;
then the point before y, and those on the ways from y to the barycentre and to the vertices of the
three largest scores. After these, rows of even number get Ω at y among other rows."""
STEPS = 24
