// ---------------------------------------------------------------- the scene at a moment

const SHAPES = { goal: 0, success_100: 1, static_collision: 2, dynamic_collision: 3, out_of_bounds: 4, time_out: 5 };
const DRONE_RADIUS = 0.3, DRONE_PIXELS = 6.5;

// What is drawn of a scene: obstacles once, everything that moves at each moment.
class Stage {
  constructor(renderer) {
    this.renderer = renderer;
    this.boxes = renderer.solids(boxMesh(), { outline: 0.22 });
    this.pillars = renderer.solids(cylinderMesh(32));
    this.movingBoxes = renderer.solids(boxMesh(), { outline: 0.3 });
    this.movingPillars = renderer.solids(cylinderMesh());
    this.drones = renderer.solids(droneMesh(), { least: DRONE_PIXELS });
    this.trails = renderer.lines(1.7);
    this.rays = renderer.lines(1.1);
    this.poles = renderer.lines(1.3);
    this.goals = renderer.marks();
    this.ends = renderer.marks();
    this.tones = new Uint8Array(4 * TONES);
  }

  load(scene, colours) {
    this.scene = scene;
    const boxes = [], pillars = [];
    const tone = (top) => mixed(colours.low, colours.high, clamp(top / 6, 0, 1));
    for (let i = 0; i < scene.boxes.length; i += 6) {
      const [x0, x1, y0, y1, z0, z1] = scene.boxes.subarray(i, i + 6);
      boxes.push((x0 + x1) / 2, (y0 + y1) / 2, (z0 + z1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, (z1 - z0) / 2, ...tone(z1), 1, 0);
    }
    for (let i = 0; i < scene.cylinders.length; i += 5) {
      const [x, y, radius, z0, z1] = scene.cylinders.subarray(i, i + 5);
      pillars.push(x, y, (z0 + z1) / 2, radius, radius, (z1 - z0) / 2, ...tone(z1), 1, 0);
    }
    this.renderer.fill(this.boxes, boxes);
    this.renderer.fill(this.pillars, pillars);
    this.renderer.fill(this.trails, this.trailLines(scene));
  }

  trailLines(scene) {
    const count = scene.flights.length, lines = [];
    scene.flights.forEach((flight, index) => {
      for (let frame = 0; frame < flight.frames; frame++) {
        const from = (frame * count + index) * 3, to = from + count * 3;
        lines.push(...scene.position.subarray(from, from + 3), ...scene.position.subarray(to, to + 3),
          frame * scene.secondsPerFrame, (frame + 1) * scene.secondsPerFrame, index);
      }
    });
    return new Float32Array(lines);
  }

  // Place everything that moves; return the drones as {place, yaw, over}.
  place(time, chosen, colours, shown) {
    const { scene } = this, { flights, frames } = scene, count = flights.length;
    const drones = flights.map((flight, index) => {
      const frame = Math.min(time / scene.secondsPerFrame, flight.frames);
      return {
        place: placeAt(scene.position, count, index, frame, frames, [0, 0, 0]),
        yaw: headingAt(scene.yaw, count, index, frame, frames),
        over: frame >= flight.frames,
      };
    });
    this.placeMoving(time / scene.secondsPerFrame, colours);
    this.placeDrones(drones, chosen, colours, shown);
    this.placeMarks(drones, chosen, colours);
    this.placeRays(drones, chosen, shown);
    return drones;
  }

  placeMoving(frame, colours) {
    const { scene } = this, count = scene.size.length, boxes = [], pillars = [];
    this.places = Array.from({ length: count }, (_, i) =>
      placeAt(scene.moving, count, i, Math.min(frame, scene.frames - 1), scene.frames, [0, 0, 0]));
    for (const [i, place] of this.places.entries()) {
      const half = scene.size[i] / 2;
      if (scene.tall[i]) pillars.push(...place, half, half, HEIGHTS.tall / 2, ...colours.moving, 1, 0);
      else boxes.push(...place, half, half, HEIGHTS.box / 2, ...colours.moving, 1, 0);
    }
    this.renderer.fill(this.movingBoxes, boxes);
    this.renderer.fill(this.movingPillars, pillars);
  }

  // The moving obstacles as the LiDAR meets them, if it does.
  movingShapes() {
    if (!this.scene.lidar.seesMoving) return { boxes: [], cylinders: [] };
    const { places, scene } = this, boxes = [], cylinders = [];
    places.forEach(([x, y, z], i) => {
      const half = scene.size[i] / 2;
      if (scene.tall[i]) cylinders.push([x, y, half, z - HEIGHTS.tall / 2, z + HEIGHTS.tall / 2]);
      else boxes.push([x - half, x + half, y - half, y + half, z - HEIGHTS.box / 2, z + HEIGHTS.box / 2]);
    });
    return { boxes, cylinders };
  }

  colourOf(flight, drone, colours) {
    return drone.over ? colours[flight.outcome] : colours.flying;
  }

  placeDrones(drones, chosen, colours, shown) {
    const items = [];
    this.scene.flights.forEach((flight, index) => {
      const drone = drones[index], colour = this.colourOf(flight, drone, colours);
      const alpha = chosen < 0 ? 0.6 : chosen === index ? 1 : 0.16;
      this.tone(index, colour, shown.trails ? alpha : chosen === index ? 1 : 0);
      if (drone.over) return; // its mark stands there
      const size = chosen === index ? DRONE_RADIUS * 1.15 : DRONE_RADIUS;
      items.push(...drone.place, size, size, size, ...colour, 1, drone.yaw);
    });
    this.tone(RAY_HIT, colours.static_collision, 0.9);
    this.tone(RAY_FREE, colours.ray, 0.28);
    this.tone(DROP_LINE, colours.faint, 0.7);
    this.renderer.setTones(this.tones);
    this.renderer.fill(this.drones, items);
  }

  tone(place, colour, alpha) {
    for (let i = 0; i < 3; i++) this.tones[4 * place + i] = Math.round(colour[i] * 255);
    this.tones[4 * place + 3] = Math.round(alpha * 255);
  }

  placeMarks(drones, chosen, colours) {
    const goals = [], ends = [], poles = [];
    this.scene.flights.forEach((flight, index) => {
      const drone = drones[index], colour = this.colourOf(flight, drone, colours);
      const mine = chosen === index, alpha = chosen < 0 || mine ? 1 : 0.35;
      const goal = this.scene.goal.subarray(3 * index, 3 * index + 3);
      goals.push(...goal, ...colour, alpha, SHAPES.goal, mine ? 8 : 4);
      if (drone.over) ends.push(...drone.place, ...colour, alpha, SHAPES[flight.outcome], mine ? 10 : 7);
      if (mine) {
        for (const [x, y, z] of [goal, drone.place]) poles.push(x, y, z, x, y, 0, ...ALWAYS, DROP_LINE);
      }
    });
    this.renderer.fill(this.goals, goals);
    this.renderer.fill(this.ends, ends);
    this.renderer.fill(this.poles, poles);
  }

  placeRays(drones, chosen, shown) {
    this.rayEnds = chosen >= 0 ? castRays(this.scene, drones[chosen].place, drones[chosen].yaw, this.movingShapes()) : [];
    const lines = [];
    if (shown.rays && chosen >= 0 && !drones[chosen].over) {
      for (const [x, y, z, hit] of this.rayEnds) {
        lines.push(...drones[chosen].place, x, y, z, ...ALWAYS, hit ? RAY_HIT : RAY_FREE);
      }
    }
    this.renderer.fill(this.rays, lines);
  }

  draw(camera, time, colours, dark, focus) {
    const { renderer } = this;
    renderer.begin(camera, colours, focus ? [...focus, 1] : [0, 0, 0, 0]);
    renderer.drawGround();
    const solid = [this.boxes, this.pillars, this.movingBoxes, this.movingPillars];
    renderer.drawShadows([...solid, this.drones], dark ? 0.34 : 0.16);
    for (const group of solid) renderer.drawSolids(group);
    renderer.focus = [0, 0, 0, 0];
    renderer.drawSolids(this.drones);
    renderer.drawLines(this.poles, 0);
    renderer.drawLines(this.trails, time);
    renderer.drawLines(this.rays, 0);
    renderer.drawMarks(this.goals, false);
    renderer.drawMarks(this.ends, true);
  }
}
