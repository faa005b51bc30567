// ---------------------------------------------------------------- vectors and matrices

const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const times = (a, factor) => [a[0] * factor, a[1] * factor, a[2] * factor];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [
  a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0],
];
const lengthOf = (a) => Math.hypot(a[0], a[1], a[2]);
const unitOf = (a) => times(a, 1 / (lengthOf(a) || 1));
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// Matrices are column by column, as WebGL has them.
function perspective(fieldOfView, aspect, near, far) {
  const f = 1 / Math.tan(fieldOfView / 2);
  return [
    f / aspect, 0, 0, 0, 0, f, 0, 0,
    0, 0, (far + near) / (near - far), -1, 0, 0, (2 * far * near) / (near - far), 0,
  ];
}

function lookAt(eye, target) {
  const back = unitOf(subtract(eye, target));
  const right = unitOf(cross([0, 0, 1], back));
  const up = cross(back, right);
  return [
    right[0], up[0], back[0], 0, right[1], up[1], back[1], 0, right[2], up[2], back[2], 0,
    -dot(right, eye), -dot(up, eye), -dot(back, eye), 1,
  ];
}

function product(a, b) {
  const result = new Float32Array(16);
  for (let column = 0; column < 4; column++) {
    for (let row = 0; row < 4; row++) {
      for (let k = 0; k < 4; k++) result[column * 4 + row] += a[k * 4 + row] * b[column * 4 + k];
    }
  }
  return result;
}

// Return where a point is on a screen of so many pixels, or null if it is behind the eye.
function project(matrix, point, width, height) {
  const clip = [0, 1, 3].map((row) =>
    matrix[row] * point[0] + matrix[4 + row] * point[1] + matrix[8 + row] * point[2] + matrix[12 + row]);
  if (clip[2] <= 0) return null;
  return [(clip[0] / clip[2] + 1) * 0.5 * width, (1 - clip[1] / clip[2]) * 0.5 * height];
}

// Return red, green and blue from 0 to 1 of a colour written #rrggbb.
function rgb(text) {
  const value = parseInt(text.trim().slice(1), 16);
  return [(value >> 16) / 255, ((value >> 8) & 255) / 255, (value & 255) / 255];
}

const mixed = (a, b, share) => a.map((value, i) => value + (b[i] - value) * share);
