"""Programs as text that tests of the native host share."""

GATHER = """\
program gather(s in 1..1000)
  inputs table, places
  arena 4*s
  buffer table: f32[s, 16] on cuda:0 = input 0
  buffer places: i64[s] on cuda:0 = input 1
  buffer sums: f32[s] on cuda:0 = arena 0
  buffer y: f32[s, 16] on cuda:0 = output
  kernel taken(p0: read f32[s, 16], p1: read i64[s], p2: write f32[s]) sizes(s in 1..1000)
    for i0: s inner r0: 16
      inner t0 = p0[checked(p1[i0], s), r0]
      reduce t1 = sum %t0
      outer store p2[i0] = %t1
  kernel spread(p0: read f32[s], p1: write f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p1[i0, i1] = p0[i0]
  kernel twice(p0: readwrite f32[s]) sizes(s in 1..16000)
    for i0: s
      outer store p0[i0] = mul(p0[i0], f32(2.0))
  steps
    allocate sums
    launch taken(table, places, sums) sizes(s)
    allocate y
    launch spread(sums, y) sizes(s)
    launch twice(y) sizes(16*s)
    return y
"""
