// ---------------------------------------------------------------- LiDAR

// Return the ends of all rays of a drone as [x, y, z, hit], computed from the obstacles as the
// simulator does: the ground and fixed obstacles, and those of `moving` if the LiDAR sees them.
function castRays(scene, place, yaw, moving = { boxes: [], cylinders: [] }) {
  const { azimuths, elevations, range } = scene.lidar;
  const near = nearShapes(scene, place, range);
  near.boxes.push(...moving.boxes);
  near.cylinders.push(...moving.cylinders);
  const ends = [];
  for (let i = 0; i < azimuths; i++) {
    const angle = yaw + (2 * Math.PI * i) / azimuths;
    for (const degrees of elevations) {
      const rise = (degrees * Math.PI) / 180;
      const direction = [
        Math.cos(angle) * Math.cos(rise), Math.sin(angle) * Math.cos(rise), Math.sin(rise),
      ];
      const distance = castRay(near, place, direction, range);
      ends.push([...add(place, times(direction, distance)), distance < range ? 1 : 0]);
    }
  }
  return ends;
}

function nearShapes(scene, place, range) {
  const boxes = [], cylinders = [];
  for (let i = 0; i < scene.boxes.length; i += 6) {
    const box = scene.boxes.subarray(i, i + 6);
    const dx = Math.max(box[0] - place[0], place[0] - box[1], 0);
    const dy = Math.max(box[2] - place[1], place[1] - box[3], 0);
    if (dx * dx + dy * dy < range * range) boxes.push(box);
  }
  for (let i = 0; i < scene.cylinders.length; i += 5) {
    const cylinder = scene.cylinders.subarray(i, i + 5);
    const gap = Math.hypot(cylinder[0] - place[0], cylinder[1] - place[1]) - cylinder[2];
    if (gap < range) cylinders.push(cylinder);
  }
  return { boxes, cylinders };
}

function castRay(near, place, direction, range) {
  let nearest = groundDistance(place, direction);
  for (const box of near.boxes) nearest = Math.min(nearest, boxDistance(box, place, direction));
  for (const cylinder of near.cylinders) {
    nearest = Math.min(nearest, cylinderDistance(cylinder, place, direction));
  }
  return Math.min(nearest, range);
}

function groundDistance(place, direction) {
  if (direction[2] >= -1e-7) return Infinity;
  const distance = -place[2] / direction[2];
  const hit = add(place, times(direction, distance));
  return Math.max(Math.abs(hit[0]), Math.abs(hit[1])) <= GROUND ? distance : Infinity;
}

function boxDistance(box, place, direction) {
  let enter = 0, leave = Infinity;
  for (let axis = 0; axis < 3; axis++) {
    const speed = Math.abs(direction[axis]) > 1e-9 ? direction[axis] : 1e-9;
    const a = (box[2 * axis] - place[axis]) / speed;
    const b = (box[2 * axis + 1] - place[axis]) / speed;
    enter = Math.max(enter, Math.min(a, b));
    leave = Math.min(leave, Math.max(a, b));
  }
  return enter <= leave ? enter : Infinity;
}

function cylinderDistance(cylinder, place, direction) {
  const [x, y, radius, bottom, top] = cylinder;
  const dx = place[0] - x, dy = place[1] - y;
  const a = direction[0] ** 2 + direction[1] ** 2;
  const b = dx * direction[0] + dy * direction[1];
  const inside = b * b - a * (dx * dx + dy * dy - radius * radius);
  if (inside < 0 || a < 1e-12) return Infinity;
  const root = Math.sqrt(inside);
  let enter = Math.max((-b - root) / a, 0), leave = (-b + root) / a;
  const speed = Math.abs(direction[2]) > 1e-9 ? direction[2] : 1e-9;
  const low = (bottom - place[2]) / speed, high = (top - place[2]) / speed;
  enter = Math.max(enter, Math.min(low, high));
  leave = Math.min(leave, Math.max(low, high));
  return enter <= leave ? enter : Infinity;
}
