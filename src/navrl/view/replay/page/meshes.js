// ---------------------------------------------------------------- shapes, as triangles

// A mesh is a list of corners: x, y, z and the normal, six numbers each, three corners a triangle.

function quad(mesh, a, b, c, d) {
  const normal = unitOf(cross(subtract(b, a), subtract(c, a)));
  for (const corner of [a, b, c, a, c, d]) mesh.push(...corner, ...normal);
}

// A box from -1 to 1 on each axis.
function boxMesh() {
  const mesh = [];
  for (let axis = 0; axis < 3; axis++) {
    for (const side of [-1, 1]) {
      const corner = (u, v) => {
        const point = [0, 0, 0];
        point[axis] = side;
        point[(axis + 1) % 3] = u * side;
        point[(axis + 2) % 3] = v;
        return point;
      };
      quad(mesh, corner(-1, -1), corner(1, -1), corner(1, 1), corner(-1, 1));
    }
  }
  return mesh;
}

// An upright cylinder of radius 1 from -1 to 1, its side smooth.
function cylinderMesh(parts = 24) {
  const mesh = [];
  for (let i = 0; i < parts; i++) {
    const [a, b] = [i, i + 1].map((k) => (2 * Math.PI * k) / parts);
    const [ca, sa, cb, sb] = [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b)];
    const side = [
      [ca, sa, -1], [cb, sb, -1], [cb, sb, 1], [ca, sa, -1], [cb, sb, 1], [ca, sa, 1],
    ];
    for (const [x, y, z] of side) mesh.push(x, y, z, x, y, 0);
    for (const z of [-1, 1]) {
      const fan = z > 0 ? [[0, 0], [ca, sa], [cb, sb]] : [[0, 0], [cb, sb], [ca, sa]];
      for (const [x, y] of fan) mesh.push(x, y, z, 0, 0, z);
    }
  }
  return mesh;
}

// A quadrotor of radius 1, its nose along x: a body, two arms, four rotor discs.
function droneMesh() {
  const mesh = [];
  const put = (part, size, centre, turn = 0) => {
    const [c, s] = [Math.cos(turn), Math.sin(turn)];
    const turned = (x, y) => [c * x - s * y, s * x + c * y];
    for (let i = 0; i < part.length; i += 6) {
      const [x, y] = turned(part[i] * size[0], part[i + 1] * size[1]);
      const [nx, ny] = turned(part[i + 3], part[i + 4]);
      mesh.push(x + centre[0], y + centre[1], part[i + 2] * size[2] + centre[2], nx, ny, part[i + 5]);
    }
  };
  const box = boxMesh(), disc = cylinderMesh(14);
  put(box, [0.34, 0.22, 0.13], [0.05, 0, 0]);
  for (const side of [1, -1]) put(box, [0.72, 0.06, 0.05], [0, 0, 0], (side * Math.PI) / 4);
  for (let i = 0; i < 4; i++) {
    const angle = Math.PI / 4 + (i * Math.PI) / 2;
    put(disc, [0.38, 0.38, 0.03], [0.66 * Math.cos(angle), 0.66 * Math.sin(angle), 0.12]);
  }
  return mesh;
}
