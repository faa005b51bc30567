// ---------------------------------------------------------------- everything beside the canvas

const byId = (id) => document.getElementById(id);
const MARK_PATHS = {
  goal: '<circle cx="7" cy="7" r="4.6" fill="none" stroke="C" stroke-width="2"/>',
  success_100: '<circle cx="7" cy="7" r="5" fill="C"/>',
  static_collision: '<path d="M2.5 2.5 11.5 11.5 M11.5 2.5 2.5 11.5" stroke="C" stroke-width="3"/>',
  dynamic_collision: '<path d="M7 1 13 7 7 13 1 7Z" fill="C"/>',
  out_of_bounds: '<path d="M7 1.5 13 12.5 1 12.5Z" fill="C"/>',
  time_out: '<rect x="2.2" y="2.2" width="9.6" height="9.6" fill="C"/>',
  flying: '<circle cx="4" cy="4" r="2.6" fill="C"/><circle cx="10" cy="4" r="2.6" fill="C"/><circle cx="4" cy="10" r="2.6" fill="C"/><circle cx="10" cy="10" r="2.6" fill="C"/><path d="M4 4 10 10 M10 4 4 10" stroke="C" stroke-width="1.4"/>',
  moving: '<rect x="2" y="2" width="10" height="10" rx="1" fill="C"/>',
  obstacle: '<rect x="2" y="2" width="10" height="10" rx="1" fill="var(--high)"/>',
  ray: '<path d="M1 12 13 2" stroke="var(--static_collision)" stroke-width="1.6"/>',
};

function keyOf(name, colour = name) {
  const path = MARK_PATHS[name].replaceAll("C", `var(--${colour})`);
  return `<svg class="key" viewBox="0 0 14 14" aria-hidden="true">${path}</svg>`;
}

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

// Return the numbers of flights in the order of the list: failures first, then by when they end.
function listOrder(scene) {
  const kinds = Object.keys(recorded.outcomes);
  const rank = (i) => kinds.indexOf(scene.flights[i].outcome);
  return scene.flights.map((_, i) => i).sort((a, b) => rank(a) - rank(b) || scene.flights[a].seconds - scene.flights[b].seconds);
}

function showAbout(scene) {
  const reached = scene.flights.filter((flight) => flight.outcome === "success_100").length;
  const count = scene.flights.length;
  byId("title").textContent = `${count} ${count === 1 ? "flight" : "flights"} of ${scene.policy}`;
  const share = count ? ` (${((100 * reached) / count).toFixed(0)} %)` : "";
  byId("summary").textContent =
    `Scenario ${scene.scenario}: every drone flies to its own goal among ${scene.obstacles}. ` +
    `${reached} of ${count} reached it${share}. Drones pass through each other. Pick a flight from the list to follow it.`;
}

function showLegend(scene) {
  const rows = [
    [keyOf("flying"), "drone in flight"], [keyOf("goal", "flying"), "its goal"],
    [keyOf("obstacle"), "fixed obstacle"],
  ];
  if (scene.size.length) rows.push([keyOf("moving"), "moving obstacle"]);
  rows.push([keyOf("ray"), "LiDAR ray that hits something"]);
  const happened = new Set(scene.flights.map((flight) => flight.outcome));
  for (const [name, words] of Object.entries(recorded.outcomes)) {
    if (happened.has(name)) rows.push([keyOf(name), words]);
  }
  byId("legend").querySelector("div").innerHTML = rows.map(([key, words]) => `<div>${key}<span>${escaped(words)}</span></div>`).join("");
}

function showList(scene, order, choose) {
  const failed = order.filter((i) => scene.flights[i].outcome !== "success_100");
  const reached = order.filter((i) => scene.flights[i].outcome === "success_100");
  const row = (i) => {
    const flight = scene.flights[i];
    return `<button data-flight="${i}">${keyOf(flight.outcome)}<span class="number">#${flight.episode}</span>` +
      `<span>${escaped(recorded.outcomes[flight.outcome])}</span><span class="seconds">${flight.seconds.toFixed(1)} s</span></button>`;
  };
  const part = (title, rows) => (rows.length ? `<h2>${title} (${rows.length})</h2>${rows.map(row).join("")}` : "");
  byId("list").innerHTML = part("Failed", failed) + part("Reached the goal", reached);
  for (const button of byId("list").querySelectorAll("button")) {
    button.addEventListener("click", () => choose(Number(button.dataset.flight)));
  }
}

// Show on the time line when flights failed.
function showEvents(scene) {
  const ticks = scene.flights.filter((flight) => flight.outcome !== "success_100").map((flight) =>
    `<rect x="${(99.7 * flight.seconds) / scene.duration}" y="0" width=".3" height="8" fill="var(--${flight.outcome})"/>`);
  byId("events").setAttribute("viewBox", "0 0 100 8");
  byId("events").innerHTML = ticks.join("");
}

function showChosen(chosen) {
  for (const button of byId("list").querySelectorAll("button")) {
    const mine = Number(button.dataset.flight) === chosen;
    button.setAttribute("aria-current", String(mine));
    if (mine) button.scrollIntoView({ block: "nearest" });
  }
}

function showFollowed(scene, chosen, drone, speed, clearance) {
  const card = byId("followed");
  card.hidden = chosen < 0;
  if (chosen < 0) return;
  const flight = scene.flights[chosen];
  const state = drone.over ? recorded.outcomes[flight.outcome] : "in flight";
  const left = lengthOf(subtract(drone.place, [...scene.goal.subarray(3 * chosen, 3 * chosen + 3)]));
  const rows = [
    ["speed", drone.over ? "–" : `${speed.toFixed(1)} m/s`], ["height", `${drone.place[2].toFixed(1)} m`],
    ["to its goal", `${left.toFixed(1)} m`],
    ["nearest obstacle", clearance < scene.lidar.range ? `${clearance.toFixed(1)} m` : `over ${scene.lidar.range} m`],
  ];
  const mark = drone.over ? keyOf(flight.outcome) : keyOf("flying");
  card.innerHTML = `<h2>${mark} #${flight.episode} ${escaped(state)}</h2><dl>` +
    rows.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("") + "</dl>";
}
