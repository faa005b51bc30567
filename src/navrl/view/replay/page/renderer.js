// ---------------------------------------------------------------- drawing

const LIGHT = unitOf([-0.45, -0.6, 1.2]);
const TONES = 2048; // places in the texture of line colours; the last ones are not of flights
const RAY_HIT = TONES - 1, RAY_FREE = TONES - 2, DROP_LINE = TONES - 3;
const ALWAYS = [-2, -1]; // times of a line that is always drawn

// Draws instanced meshes, lines and marks into a canvas; knows nothing about flights.
class Renderer {
  constructor(canvas) {
    this.canvas = canvas;
    this.gl = canvas.getContext("webgl2", { alpha: false, antialias: true, stencil: true });
    if (!this.gl) throw new Error("this browser has no WebGL 2");
    this.programs = {
      solid: this.program(SOLID_VERTEX, SOLID_FRAGMENT),
      line: this.program(LINE_VERTEX, LINE_FRAGMENT),
      mark: this.program(MARK_VERTEX, MARK_FRAGMENT),
      ground: this.program(GROUND_VERTEX, GROUND_FRAGMENT),
    };
    this.square = this.buffer([-1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1]);
    this.strip = this.buffer([0, -1, 1, -1, 1, 1, 0, -1, 1, 1, 0, 1]);
    this.groundArrays = this.arrays([[0, 2, this.square, 0, 0, 0]]);
    this.tones = this.toneTexture();
  }

  program(vertex, fragment) {
    const gl = this.gl, program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    const uniforms = {};
    for (let i = 0; i < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); i++) {
      const { name } = gl.getActiveUniform(program, i);
      uniforms[name] = gl.getUniformLocation(program, name);
    }
    return { program, uniforms };
  }

  buffer(values) {
    const gl = this.gl, buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(values), gl.STATIC_DRAW);
    return buffer;
  }

  // Attributes are [location, numbers, buffer, stride, offset, per instance], counted in floats.
  arrays(attributes) {
    const gl = this.gl, arrays = gl.createVertexArray();
    gl.bindVertexArray(arrays);
    for (const [location, numbers, buffer, stride, offset, divisor] of attributes) {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(location);
      gl.vertexAttribPointer(location, numbers, gl.FLOAT, false, 4 * stride, 4 * offset);
      gl.vertexAttribDivisor(location, divisor);
    }
    gl.bindVertexArray(null);
    return arrays;
  }

  // A mesh drawn many times: 11 numbers each, centre, half size, colour with alpha, yaw.
  solids(mesh, options = {}) {
    const corners = this.buffer(mesh), items = this.gl.createBuffer();
    const arrays = this.arrays([
      [0, 3, corners, 6, 0, 0], [1, 3, corners, 6, 3, 0],
      [2, 3, items, 11, 0, 1], [3, 3, items, 11, 3, 1], [4, 4, items, 11, 6, 1], [5, 1, items, 11, 10, 1],
    ]);
    return { arrays, items, corners: mesh.length / 6, count: 0, numbers: 11, outline: 0, least: 0, ...options };
  }

  // Lines: 9 numbers each, from, to, the times of both, the place of the colour.
  lines(width) {
    const items = this.gl.createBuffer();
    const arrays = this.arrays([
      [0, 2, this.strip, 0, 0, 0], [1, 3, items, 9, 0, 1], [2, 3, items, 9, 3, 1],
      [3, 2, items, 9, 6, 1], [4, 1, items, 9, 8, 1],
    ]);
    return { arrays, items, count: 0, numbers: 9, width };
  }

  // Marks: 9 numbers each, centre, colour with alpha, shape, half size in pixels.
  marks() {
    const items = this.gl.createBuffer();
    const arrays = this.arrays([
      [0, 2, this.square, 0, 0, 0], [1, 3, items, 9, 0, 1], [2, 4, items, 9, 3, 1], [3, 2, items, 9, 7, 1],
    ]);
    return { arrays, items, count: 0, numbers: 9 };
  }

  fill(group, values) {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, group.items);
    gl.bufferData(gl.ARRAY_BUFFER, values instanceof Float32Array ? values : new Float32Array(values), gl.DYNAMIC_DRAW);
    group.count = values.length / group.numbers;
  }

  toneTexture() {
    const gl = this.gl, texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, TONES, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, null);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    return texture;
  }

  setTones(bytes) {
    const gl = this.gl;
    gl.bindTexture(gl.TEXTURE_2D, this.tones);
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, TONES, 1, gl.RGBA, gl.UNSIGNED_BYTE, bytes);
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const { clientWidth, clientHeight } = this.canvas;
    const [width, height] = [Math.max(1, Math.round(clientWidth * ratio)), Math.max(1, Math.round(clientHeight * ratio))];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.ratio = ratio;
  }

  // Clear the picture. What hides the focus [x, y, z, 1] is drawn as a screen door; [0, 0, 0, 0]: nothing.
  begin(camera, colours, focus) {
    const gl = this.gl;
    this.focus = focus;
    this.camera = camera;
    this.colours = colours;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(...colours.sky, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT | gl.STENCIL_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
  }

  use(name, values) {
    const gl = this.gl, { program, uniforms } = this.programs[name];
    gl.useProgram(program);
    const common = {
      eye: this.camera.eye, light: LIGHT, sky: this.colours.sky, ground: this.colours.ground,
      grid: this.colours.grid, halo: this.colours.halo, screen: [this.canvas.width, this.canvas.height],
      pixel: this.camera.pixel(this.canvas.height), scale: this.ratio, focus: this.focus,
    };
    gl.uniformMatrix4fv(uniforms.camera, false, this.camera.matrix);
    for (const [key, value] of Object.entries({ ...common, ...values })) {
      if (uniforms[key] === undefined) continue;
      if (typeof value === "number") gl.uniform1f(uniforms[key], value);
      else gl[`uniform${value.length}fv`](uniforms[key], value);
    }
  }

  drawGround() {
    this.use("ground", { reach: 120 });
    this.gl.bindVertexArray(this.groundArrays);
    this.gl.drawArrays(this.gl.TRIANGLES, 0, 6);
  }

  // Draw shadows on the ground, each place darkened once.
  drawShadows(groups, strength) {
    const gl = this.gl;
    gl.enable(gl.BLEND);
    gl.enable(gl.STENCIL_TEST);
    gl.stencilFunc(gl.EQUAL, 0, 255);
    gl.stencilOp(gl.KEEP, gl.KEEP, gl.INCR);
    gl.depthMask(false);
    for (const group of groups) this.drawSolids(group, { shadow: strength });
    gl.depthMask(true);
    gl.disable(gl.STENCIL_TEST);
    gl.disable(gl.BLEND);
  }

  drawSolids(group, values = { shadow: 0 }) {
    if (!group.count) return;
    this.use("solid", { ...values, outline: group.outline, least: group.least * this.ratio });
    this.gl.bindVertexArray(group.arrays);
    this.gl.drawArraysInstanced(this.gl.TRIANGLES, 0, group.corners, group.count);
  }

  drawLines(group, now) {
    if (!group.count) return;
    const gl = this.gl;
    gl.enable(gl.BLEND);
    gl.depthMask(false);
    this.use("line", { now, width: group.width * this.ratio });
    gl.bindTexture(gl.TEXTURE_2D, this.tones);
    gl.bindVertexArray(group.arrays);
    gl.drawArraysInstanced(gl.TRIANGLES, 0, 6, group.count);
    gl.depthMask(true);
    gl.disable(gl.BLEND);
  }

  drawMarks(group, onTop) {
    if (!group.count) return;
    const gl = this.gl;
    if (onTop) gl.disable(gl.DEPTH_TEST);
    gl.enable(gl.BLEND);
    gl.depthMask(false);
    this.use("mark", {});
    gl.bindVertexArray(group.arrays);
    gl.drawArraysInstanced(gl.TRIANGLES, 0, 6, group.count);
    gl.depthMask(true);
    gl.disable(gl.BLEND);
    gl.enable(gl.DEPTH_TEST);
  }
}
