// ---------------------------------------------------------------- putting it together

class Replay {
  constructor(canvas) {
    this.canvas = canvas;
    this.renderer = new Renderer(canvas);
    this.stage = new Stage(this.renderer);
    this.camera = new Camera();
    this.scenes = [];
    this.time = 0;
    this.speed = 1;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.chosen = -1; // the flight that is shown in detail
    this.following = false; // whether the camera goes with it
    this.shown = { rays: true, trails: true };
    this.changed = true;
    this.drawn = 0; // pictures drawn so far
  }

  open(number) {
    this.scene = this.scenes[number];
    this.number = number;
    this.order = listOrder(this.scene);
    this.time = 0;
    this.readColours();
    showAbout(this.scene);
    showLegend(this.scene);
    showList(this.scene, this.order, (index) => this.choose(index));
    showEvents(this.scene);
    byId("time").max = this.scene.duration;
    for (const [i, tab] of [...byId("scenes").children].entries()) tab.setAttribute("aria-selected", String(i === number));
    this.overview();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.dark = style.getPropertyValue("--dark").trim() === "1";
    this.colours = Object.fromEntries(recorded.colours.map((name) => [name, rgb(style.getPropertyValue(`--${name}`))]));
    this.colours.halo = this.colours.background;
    this.stage.load(this.scene, this.colours);
    this.changed = true;
  }

  // Follow a flight, from shortly before its end if it failed.
  choose(index) {
    const flight = this.scene.flights[index];
    this.chosen = index;
    this.following = true;
    if (flight.outcome !== "success_100") this.seek(Math.max(0, flight.seconds - 6));
    else if (this.time >= flight.seconds) this.seek(0);
    this.camera.goal.distance = Math.min(this.camera.goal.distance, 12);
    this.camera.goal.pitch = clamp(this.camera.goal.pitch, 0.5, 1.0);
    showChosen(index);
    this.changed = true;
  }

  overview() {
    this.chosen = -1;
    this.following = false;
    this.camera.overview();
    showChosen(-1);
    this.changed = true;
  }

  seek(time) {
    this.time = clamp(time, 0, this.scene.duration);
    this.changed = true;
  }

  play(on = !this.playing) {
    this.playing = on;
    if (on && this.time >= this.scene.duration) this.seek(0);
    byId("play").textContent = on ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", on ? "Pause" : "Play");
    this.changed = true;
  }

  toggle(name) {
    this.shown[name] = !this.shown[name];
    byId(name).setAttribute("aria-pressed", String(this.shown[name]));
    this.changed = true;
  }

  setSpeed(speed) {
    this.speed = speed;
    byId("speed").value = String(speed);
  }

  switchTheme() {
    document.documentElement.dataset.theme = this.dark ? "light" : "dark";
    this.readColours();
  }

  // Choose the next or the previous flight of the list.
  step(by) {
    const place = this.order.indexOf(this.chosen);
    const next = place < 0 ? (by > 0 ? 0 : this.order.length - 1) : clamp(place + by, 0, this.order.length - 1);
    if (this.order.length) this.choose(this.order[next]);
  }

  // Return where a place is in the canvas, in pixels of the page, or null behind the camera.
  onScreen(place) {
    return project(this.camera.matrix, place, this.canvas.clientWidth, this.canvas.clientHeight);
  }

  pick(x, y) {
    let best = -1, nearest = 22;
    this.drones.forEach((drone, index) => {
      const at = this.onScreen(drone.place);
      const gap = at ? Math.hypot(at[0] - x, at[1] - y) : Infinity;
      if (gap < nearest) [best, nearest] = [index, gap];
    });
    if (best >= 0) this.choose(best);
  }

  frame(stamp) {
    const seconds = Math.min((stamp - (this.stamp ?? stamp)) / 1000, 0.5); // a tab in the background stands still
    this.stamp = stamp;
    if (this.playing) {
      this.time += seconds * this.speed;
      if (this.time >= this.scene.duration) {
        this.time = this.scene.duration;
        this.play(false);
      }
      this.changed = true;
    }
    this.renderer.resize();
    const aspect = this.canvas.width / this.canvas.height;
    if (aspect !== this.camera.aspect) [this.camera.aspect, this.changed] = [aspect, true];
    if (this.changed || this.gliding) this.draw(seconds);
    requestAnimationFrame((next) => this.frame(next));
  }

  draw(seconds) {
    this.changed = false;
    this.drones = this.stage.place(this.time, this.chosen, this.colours, this.shown);
    if (this.following) this.camera.goal.target = [...this.drones[this.chosen].place];
    this.gliding = this.camera.glide(Math.max(seconds, 0.001), this.following);
    const focus = this.following ? this.drones[this.chosen].place : null;
    this.stage.draw(this.camera, this.time, this.colours, this.dark, focus);
    byId("time").value = this.time;
    byId("clock").textContent = `${this.time.toFixed(1)} of ${this.scene.duration.toFixed(1)} s`;
    this.showFollowed();
    this.drawn += 1;
  }

  showFollowed() {
    const drone = this.drones[this.chosen];
    let speed = 0, clearance = Infinity;
    if (drone) {
      const { scene } = this, flight = scene.flights[this.chosen], step = scene.secondsPerFrame;
      const frame = Math.min(this.time / step, flight.frames);
      const [a, b] = [Math.max(0, frame - 0.5), Math.min(flight.frames, frame + 0.5)].map((moment) =>
        placeAt(scene.position, scene.flights.length, this.chosen, moment, scene.frames, [0, 0, 0]));
      speed = lengthOf(subtract(b, a)) / step;
      for (const [x, y, z] of this.stage.rayEnds) clearance = Math.min(clearance, lengthOf(subtract([x, y, z], drone.place)));
    }
    showFollowed(this.scene, this.chosen, drone, speed, clearance);
  }
}

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

function attachControls(replay) {
  byId("play").addEventListener("click", () => replay.play());
  byId("time").addEventListener("input", (event) => replay.seek(Number(event.target.value)));
  byId("speed").addEventListener("change", (event) => replay.setSpeed(Number(event.target.value)));
  byId("overview").addEventListener("click", () => replay.overview());
  for (const name of ["rays", "trails"]) byId(name).addEventListener("click", () => replay.toggle(name));
  byId("theme").addEventListener("click", () => replay.switchTheme());
  byId("help").addEventListener("click", () => byId("keys").showModal());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => replay.readColours());
  document.addEventListener("keydown", (event) => onKey(replay, event));
  const leave = () => { replay.following = false; };
  const changed = () => { replay.changed = true; };
  attachPointer(replay.canvas, replay.camera, changed, leave, (x, y) => replay.pick(x, y));
}

function onKey(replay, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.target.matches("select")) return;
  const jump = event.shiftKey ? replay.scene.secondsPerFrame : 1;
  const faster = (by) => replay.setSpeed(SPEEDS[clamp(SPEEDS.indexOf(replay.speed) + by, 0, SPEEDS.length - 1)]);
  const actions = {
    " ": () => replay.play(), ArrowLeft: () => replay.seek(replay.time - jump), ArrowRight: () => replay.seek(replay.time + jump),
    ArrowUp: () => replay.step(-1), ArrowDown: () => replay.step(1), ",": () => faster(-1), ".": () => faster(1),
    o: () => replay.overview(), Escape: () => replay.overview(), l: () => replay.toggle("rays"), t: () => replay.toggle("trails"),
    d: () => replay.switchTheme(), "?": () => byId("keys").showModal(),
  };
  const action = actions[event.key] ?? actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action();
}

// Open what the address names: #scenario=crossing&episode=37
function openAddressed(replay) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const number = recorded.scenes.findIndex((scene) => scene.scenario === wanted.get("scenario"));
  replay.open(Math.max(number, 0));
  const index = replay.scene.flights.findIndex((flight) => String(flight.episode) === wanted.get("episode"));
  if (index >= 0) replay.choose(index);
}

function fail(error) {
  byId("message").hidden = false;
  byId("message").textContent = `The flights cannot be shown: ${error.message}. A recent Chrome, Firefox, Edge or Safari shows them.`;
  throw error;
}

async function start() {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser has no DecompressionStream");
  const replay = new Replay(byId("canvas"));
  window.replay = replay; // for the console, and for tests
  replay.scenes = await Promise.all(recorded.scenes.map(decodeScene));
  if (replay.scenes.length > 1) {
    byId("scenes").innerHTML = replay.scenes.map((scene) => `<button role="tab">${escaped(scene.scenario)}</button>`).join("");
    for (const [i, tab] of [...byId("scenes").children].entries()) tab.addEventListener("click", () => replay.open(i));
  }
  openAddressed(replay);
  attachControls(replay);
  byId("legend").open = innerWidth > 760 && innerHeight > 600;
  replay.play(replay.playing);
  requestAnimationFrame((stamp) => replay.frame(stamp));
}

window.castRays = castRays; // for tests
start().catch(fail);
