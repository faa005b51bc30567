// ---------------------------------------------------------------- the recorded numbers

// Return one scene with its arrays in metres and radians. The arrays arrive as second differences
// that wrap at 16 bits, folded to whole numbers from 0, low bytes before high bytes.
async function decodeScene(raw) {
  const packed = Uint8Array.from(atob(raw.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const total = planes.length / 2;
  const arrays = {};
  let used = 0;
  for (const [name, shape] of Object.entries(raw.shapes)) {
    const count = shape.reduce((product, size) => product * size, 1);
    const values = new Int16Array(count);
    for (let i = 0; i < count; i++) {
      const word = planes[used + i] | (planes[total + used + i] << 8);
      values[i] = (word >> 1) ^ -(word & 1);
    }
    summed(summed(values, shape), shape);
    arrays[name] = scaled(values, name, raw.unit);
    used += count;
  }
  const frames = raw.shapes.position[0];
  const flights = raw.flights.map((flight) => ({ ...flight, seconds: flight.frames * raw.secondsPerFrame }));
  return { ...raw, ...arrays, flights, data: null, frames, duration: Math.max(frames - 1, 1) * raw.secondsPerFrame };
}

// Add each row to the next, in place.
function summed(values, shape) {
  const width = shape[0] ? values.length / shape[0] : 0;
  for (let i = width; i < values.length; i++) values[i] += values[i - width];
  return values;
}

function scaled(values, name, unit) {
  const factor = name === "yaw" ? Math.PI / 32768 : name === "tall" ? 1 : unit;
  return Float32Array.from(values, (value) => value * factor);
}

// Write the place of thing `index` of `count` at a moment between two frames into `out`.
function placeAt(values, count, index, frame, frames, out) {
  const before = Math.min(Math.floor(frame), frames - 1);
  const after = Math.min(before + 1, frames - 1);
  const share = frame - before;
  for (let axis = 0; axis < 3; axis++) {
    const a = values[(before * count + index) * 3 + axis];
    const b = values[(after * count + index) * 3 + axis];
    out[axis] = a + (b - a) * share;
  }
  return out;
}

function headingAt(values, count, index, frame, frames) {
  const before = Math.min(Math.floor(frame), frames - 1);
  const after = Math.min(before + 1, frames - 1);
  const a = values[before * count + index];
  let turn = values[after * count + index] - a;
  turn -= Math.round(turn / (2 * Math.PI)) * 2 * Math.PI;
  return a + turn * (frame - before);
}
