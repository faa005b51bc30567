// ---------------------------------------------------------------- the camera

const FIELD_OF_VIEW = (42 * Math.PI) / 180;

// A camera that looks at a point from a distance; moves glide to where they should be.
class Camera {
  constructor() {
    this.whole = { target: [0.5, 1.5, 0], yaw: -1.2, pitch: 0.75, distance: 66 };
    this.goal = { ...this.whole };
    this.now = { ...this.whole };
    this.aspect = 1;
    this.update();
  }

  overview() {
    const fit = Math.max(1, 1.6 / this.aspect);
    Object.assign(this.goal, { ...this.whole, distance: this.whole.distance * fit });
  }

  turn(dx, dy) {
    this.goal.yaw -= dx * 0.006;
    this.goal.pitch = clamp(this.goal.pitch + dy * 0.006, 0.04, 1.555);
  }

  zoom(factor) {
    this.goal.distance = clamp(this.goal.distance * factor, 1.5, 160);
  }

  // Move along the ground by so many pixels of a screen of this height.
  pan(dx, dy, height) {
    const metres = this.now.distance * this.pixel(height);
    const right = [-Math.sin(this.now.yaw), Math.cos(this.now.yaw), 0];
    const ahead = [-Math.cos(this.now.yaw), -Math.sin(this.now.yaw), 0];
    const shift = add(times(right, -dx * metres), times(ahead, (dy * metres) / Math.max(Math.sin(this.now.pitch), 0.3)));
    this.goal.target = add(this.goal.target, shift).map((value, axis) => clamp(value, axis < 2 ? -60 : 0, axis < 2 ? 60 : 20));
  }

  // Glide for so many seconds; return whether anything still moves.
  glide(seconds, tight) {
    const share = 1 - Math.exp(-seconds * (tight ? 14 : 8));
    let far = 0;
    for (const key of ["yaw", "pitch", "distance"]) {
      const gap = this.goal[key] - this.now[key];
      far = Math.max(far, Math.abs(gap) / (key === "distance" ? this.goal.distance : 1));
      this.now[key] += gap * share;
    }
    const gap = subtract(this.goal.target, this.now.target);
    far = Math.max(far, lengthOf(gap) / this.goal.distance);
    this.now.target = add(this.now.target, times(gap, share));
    if (far < 1e-4) this.now = { ...this.goal };
    this.update();
    return far >= 1e-4;
  }

  update() {
    const { target, yaw, pitch, distance } = this.now;
    const back = [Math.cos(yaw) * Math.cos(pitch), Math.sin(yaw) * Math.cos(pitch), Math.sin(pitch)];
    this.eye = add(target, times(back, distance));
    this.eye[2] = Math.max(this.eye[2], 0.1);
    const near = clamp(distance * 0.02, 0.05, 1);
    this.matrix = product(perspective(FIELD_OF_VIEW, this.aspect, near, near + 400), lookAt(this.eye, target));
  }

  // Return the metres that a pixel covers a metre away.
  pixel(height) {
    return (2 * Math.tan(FIELD_OF_VIEW / 2)) / height;
  }
}

// Turn, move and zoom with mouse, pen and fingers; report a click that was no drag.
function attachPointer(canvas, camera, changed, panned, clicked) {
  const down = new Map();
  let moved = 0;
  const spread = () => {
    const [a, b] = [...down.values()];
    return { apart: Math.hypot(a.x - b.x, a.y - b.y), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!down.size) moved = 0;
    down.set(event.pointerId, { x: event.clientX, y: event.clientY });
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = down.get(event.pointerId);
    if (!last) return;
    const before = down.size === 2 ? spread() : null;
    const dx = event.clientX - last.x, dy = event.clientY - last.y;
    moved += Math.abs(dx) + Math.abs(dy);
    down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (before) {
      const after = spread();
      camera.zoom(before.apart / Math.max(after.apart, 1));
      panned();
      camera.pan(after.x - before.x, after.y - before.y, canvas.clientHeight);
    } else if (event.buttons & 2 || event.shiftKey) {
      panned();
      camera.pan(dx, dy, canvas.clientHeight);
    } else {
      camera.turn(dx, dy);
    }
    changed();
  });
  const up = (event) => {
    if (down.delete(event.pointerId) && event.type === "pointerup" && moved < 5 && event.button === 0) {
      clicked(event.offsetX, event.offsetY);
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    camera.zoom(Math.exp(clamp(event.deltaY, -120, 120) * 0.0022));
    changed();
  }, { passive: false });
}
