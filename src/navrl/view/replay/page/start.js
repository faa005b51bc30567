// ---------------------------------------------------------------- what the page shows

const recorded = JSON.parse(document.getElementById("flights").textContent);
const GROUND = recorded.ground; // m, half the width of the ground
const HEIGHTS = recorded.heights; // m, of moving cylinders (tall) and boxes
