// ---------------------------------------------------------------- shaders

const SOLID_VERTEX = `#version 300 es
layout(location=0) in vec3 corner;
layout(location=1) in vec3 normal;
layout(location=2) in vec3 centre;
layout(location=3) in vec3 size;
layout(location=4) in vec4 colour;
layout(location=5) in float yaw;
uniform mat4 camera;
uniform vec3 eye, light;
uniform float shadow, pixel, least;
out vec3 vNormal, vPlace, vLocal, vSize;
out vec4 vColour;
void main() {
  vec3 half_size = size;
  if (least > 0.0) half_size *= max(1.0, least * pixel * distance(eye, centre) / size.x);
  mat2 turn = mat2(cos(yaw), sin(yaw), -sin(yaw), cos(yaw));
  vec3 offset = corner * half_size;
  offset.xy = turn * offset.xy;
  vec3 place = centre + offset;
  if (shadow > 0.0) place = vec3(place.xy - light.xy / light.z * max(place.z, 0.0), 0.012);
  vNormal = vec3(turn * normal.xy, normal.z);
  vPlace = place;
  vLocal = corner;
  vSize = half_size;
  vColour = colour;
  gl_Position = camera * vec4(place, 1.0);
}`;

const FOG = `
vec3 fogged(vec3 tone, vec3 place) {
  float share = smoothstep(70.0, 190.0, distance(place, eye));
  return mix(tone, sky, share);
}`;

const SOLID_FRAGMENT = `#version 300 es
precision highp float;
in vec3 vNormal, vPlace, vLocal, vSize;
in vec4 vColour;
uniform vec3 eye, light, sky;
uniform vec4 focus;
uniform float shadow, outline;
out vec4 pixel_colour;
${FOG}
bool hides_focus() {
  vec3 ahead = focus.xyz - eye, here = vPlace - eye;
  float share = dot(here, ahead) / dot(ahead, ahead);
  float aside = distance(here, ahead * share);
  return focus.w > 0.0 && share < 0.97 && aside < 0.035 * length(ahead) + 0.35 * share;
}
void main() {
  if (shadow <= 0.0 && hides_focus() && mod(gl_FragCoord.x + gl_FragCoord.y, 4.0) > 1.0) discard;
  if (shadow > 0.0) { pixel_colour = vec4(0.0, 0.0, 0.0, shadow); return; }
  float facing = dot(normalize(vNormal), normalize(light));
  float bright = 0.74 + 0.26 * max(facing, 0.0) + 0.06 * vNormal.z - 0.10 * max(-facing, 0.0);
  if (outline > 0.0) {
    // the second nearest pair of faces is near only along an edge of the box
    vec3 gap = (1.0 - abs(vLocal)) * vSize / max(fwidth(vPlace.x) + fwidth(vPlace.y) + fwidth(vPlace.z), 1e-6);
    float low = min(gap.x, min(gap.y, gap.z)), high = max(gap.x, max(gap.y, gap.z));
    float middle = gap.x + gap.y + gap.z - low - high;
    bright *= mix(1.0 - outline, 1.0, smoothstep(0.25, 0.9, middle));
    bright *= mix(0.88, 1.0, smoothstep(0.0, 0.8, vPlace.z));
  }
  pixel_colour = vec4(fogged(vColour.rgb * min(bright, 1.08), vPlace), vColour.a);
}`;

// A line of constant width on the screen. A line with times is drawn from the first to the present.
const LINE_VERTEX = `#version 300 es
layout(location=0) in vec2 corner;
layout(location=1) in vec3 begin;
layout(location=2) in vec3 end;
layout(location=3) in vec2 when;
layout(location=4) in float owner;
uniform mat4 camera;
uniform vec2 screen;
uniform float now, width;
uniform sampler2D tones;
out vec4 vColour;
void main() {
  vColour = texelFetch(tones, ivec2(int(owner), 0), 0);
  float share = clamp((now - when.x) / max(when.y - when.x, 1e-6), 0.0, 1.0);
  vec4 a = camera * vec4(begin, 1.0), b = camera * vec4(mix(begin, end, share), 1.0);
  float close = 0.05;
  if (share <= 0.0 || vColour.a <= 0.0 || (a.w < close && b.w < close)) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); return; }
  if (a.w < close) a = mix(a, b, (close - a.w) / (b.w - a.w));
  if (b.w < close) b = mix(b, a, (close - b.w) / (a.w - b.w));
  vec2 along = (b.xy / b.w - a.xy / a.w) * screen;
  along = dot(along, along) > 1e-6 ? normalize(along) : vec2(1.0, 0.0);
  vec4 place = corner.x < 0.5 ? a : b;
  vec2 aside = vec2(-along.y, along.x) * corner.y + along * (corner.x - 0.5) * 0.6;
  place.xy += aside * width / screen * place.w;
  gl_Position = place;
}`;

const LINE_FRAGMENT = `#version 300 es
precision mediump float;
in vec4 vColour;
out vec4 pixel_colour;
void main() { pixel_colour = vColour; }`;

// Marks face the eye and keep their size on the screen: 0 ring, 1 disc, 2 cross, 3 diamond,
// 4 triangle, 5 square.
const MARK_VERTEX = `#version 300 es
layout(location=0) in vec2 corner;
layout(location=1) in vec3 centre;
layout(location=2) in vec4 colour;
layout(location=3) in vec2 kind;
uniform mat4 camera;
uniform vec2 screen;
uniform float scale;
out vec2 vLocal;
out vec4 vColour;
flat out int vShape;
void main() {
  vec4 place = camera * vec4(centre, 1.0);
  place.xy += corner * kind.y * scale * 2.0 / screen * place.w;
  vLocal = corner;
  vColour = colour;
  vShape = int(kind.x);
  gl_Position = place;
}`;

const MARK_FRAGMENT = `#version 300 es
precision highp float;
in vec2 vLocal;
in vec4 vColour;
flat in int vShape;
uniform vec3 halo;
out vec4 pixel_colour;
float gap(vec2 p) {
  if (vShape == 0) return abs(length(p) - 0.62) - 0.13;
  if (vShape == 1) return length(p) - 0.62;
  if (vShape == 2) {
    vec2 q = abs(vec2(p.x + p.y, p.x - p.y)) * 0.7071;
    return min(max(q.x - 0.80, q.y - 0.19), max(q.y - 0.80, q.x - 0.19));
  }
  if (vShape == 3) return (abs(p.x) + abs(p.y) - 0.80) * 0.7071;
  if (vShape == 4) return max(abs(p.x) * 0.866 + p.y * 0.5, -p.y) - 0.42;
  return max(abs(p.x), abs(p.y)) - 0.56;
}
void main() {
  float far = gap(vLocal), soft = max(fwidth(far), 1e-4);
  float inside = 1.0 - smoothstep(-soft, soft, far);
  float rim = (1.0 - smoothstep(0.10, 0.10 + 2.0 * soft, far)) * 0.9;
  float alpha = max(inside, rim) * vColour.a;
  if (alpha < 0.01) discard;
  pixel_colour = vec4(mix(halo, vColour.rgb, inside), alpha);
}`;

const GROUND_VERTEX = `#version 300 es
layout(location=0) in vec2 corner;
uniform mat4 camera;
uniform float reach;
out vec3 vPlace;
void main() {
  vPlace = vec3(corner * reach, 0.0);
  gl_Position = camera * vec4(vPlace, 1.0);
}`;

const GROUND_FRAGMENT = `#version 300 es
precision highp float;
in vec3 vPlace;
uniform vec3 eye, sky, ground, grid;
out vec4 pixel_colour;
${FOG}
float lines(float every, float width) {
  vec2 gap = abs(fract(vPlace.xy / every - 0.5) - 0.5) * every / fwidth(vPlace.xy);
  return 1.0 - clamp(min(gap.x, gap.y) - width + 0.5, 0.0, 1.0);
}
void main() {
  float edge = max(abs(vPlace.x), abs(vPlace.y));
  float inside = 1.0 - smoothstep(${GROUND.toFixed(1)}, ${GROUND.toFixed(1)} + fwidth(edge), edge);
  vec3 tone = mix(mix(ground, sky, 0.6), ground, inside);
  float line = max(lines(5.0, 0.7) * 0.7 * inside, 0.0);
  float border = 1.0 - smoothstep(0.5, 1.5, abs(edge - ${GROUND.toFixed(1)}) / fwidth(edge));
  tone = mix(tone, grid, max(line, border));
  float share = smoothstep(26.0, 95.0, length(vPlace.xy));
  pixel_colour = vec4(mix(fogged(tone, vPlace), sky, share), 1.0);
}`;
