"""The policy as one C header: weights and loops, no library but libm, no allocation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from navrl.deploy.robot_policy import RobotPolicy
from navrl.errors import ConfigError
from navrl.rl.networks import relative_motion as motion
from navrl.rl.networks.navigation import NavigationNetwork

LINEAR = ("lidar.7", "dynamic.0", "dynamic.3", "trunk.0", "trunk.3")
NORMS = ("lidar.8", "dynamic.2", "dynamic.5", "trunk.2", "trunk.5")
CONVOLUTIONS = ("lidar.0", "lidar.2", "lidar.4")

EXAMPLE = """/* cc -O3 -march=native example.c -lm && ./a.out */
#include <stdio.h>
#include "navrl_policy.h"

int main(void) {
  const float position[3] = {0, 0, 1}, velocity[3] = {0, 0, 0};
  const float goal[3] = {10, 0, 1}, start[3] = {0, 0, 1};
  float lidar[NAVRL_AZIMUTHS * NAVRL_BEAMS];       /* metres, azimuth by azimuth */
  for (int i = 0; i < NAVRL_AZIMUTHS * NAVRL_BEAMS; i++) lidar[i] = NAVRL_RANGE;
  const float obstacles[1][8] = {                  /* x y z vx vy vz width height */
    {3, 0.5f, 1, -1, 0, 0, 0.5f, 5}};
  float command[3];
  navrl_command(position, velocity, goal, start, lidar, &obstacles[0][0], 1, command);
  printf("fly %.3f %.3f %.3f m/s\\n", command[0], command[1], command[2]);
  return 0;
}
"""


def c_header(policy: RobotPolicy) -> str:
    """Return the text of `navrl_policy.h`.

    Raises:
        ConfigError: the network is not the convolutional one, or its actions are not Beta.
    """
    network = policy.network
    if type(network) is not NavigationNetwork or network.distribution != "beta":
        raise ConfigError(
            f"the policy has a {type(network).__name__} with {network.distribution} actions; a C "
            "header can be written for the convolutional network with Beta actions: leave c out "
            "of --format"
        )
    return "".join([_HEAD, *_constants(policy), *_weights(network), _LAYERS, _COMMAND])


def _constants(policy: RobotPolicy) -> Iterator[str]:
    rows = (policy.azimuths + 1) // 2
    last, beams = (rows + 1) // 2, (policy.beams + 1) // 2
    related = len(motion.RELATIVE) if policy.network.relative_motion else 0
    yield from (
        f"#define NAVRL_AZIMUTHS {policy.azimuths}\n",
        f"#define NAVRL_BEAMS {policy.beams}\n",
        f"#define NAVRL_OBSERVED {policy.observed}\n",
        f"#define NAVRL_RANGE {policy.reach!r}f      /* m */\n",
        f"#define NAVRL_LIMIT {policy.limit!r}f      /* m/s on each axis of the goal frame */\n",
        f"#define NAVRL_CLIMB {policy.climb!r}f      /* m/s up and down */\n",
        f"#define NAVRL_DETECTION_RANGE {policy.detection_reach!r}f /* m */\n",
        f"#define NAVRL_PLANAR {int(policy.planar)}   /* 1: heights are ignored */\n",
        f"#define NAVRL_CIRCULAR {int(policy.network.circular)}\n",
        f"#define NAVRL_RELATIVE {related}   /* numbers of relative motion an obstacle */\n",
        f"#define NAVRL_PRESENT {motion.PRESENT!r}f\n",
        f"#define NAVRL_SLOWEST {motion.SLOWEST!r}f    /* (m/s)^2 */\n",
        f"#define NAVRL_HORIZON {motion.HORIZON!r}f    /* s */\n",
        f"#define NAVRL_HALF_CLASS {motion.HALF_CLASS!r}f    /* m */\n",
        f"#define NAVRL_ROWS2 {rows}\n#define NAVRL_ROWS3 {last}\n#define NAVRL_BEAMS3 {beams}\n",
    )


def _weights(network: NavigationNetwork) -> Iterator[str]:
    """Yield the weights: inputs first, so that the inner loops run over outputs."""
    state = {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
    for name in CONVOLUTIONS:
        yield _array(f"{name}.weight", state[f"{name}.weight"].transpose(1, 2, 3, 0))
        yield _array(f"{name}.bias", state[f"{name}.bias"])
    for name in LINEAR:
        yield _array(f"{name}.weight", _inputs_first(network, name, state[f"{name}.weight"]))
        yield _array(f"{name}.bias", state[f"{name}.bias"])
    for name in NORMS:
        yield _array(f"{name}.weight", state[f"{name}.weight"])
        yield _array(f"{name}.bias", state[f"{name}.bias"])
    heads = np.concatenate([state["alpha.weight"], state["beta.weight"]])
    yield _array("heads.weight", heads.T)
    yield _array("heads.bias", np.concatenate([state["alpha.bias"], state["beta.bias"]]))


def _inputs_first(
    network: NavigationNetwork, name: str, weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    if name == "lidar.7":  # torch flattens (channel, azimuth, beam), the header the channel last
        azimuths, beams = network.layout.shapes["lidar"][-2:]
        rows, columns = (azimuths + 3) // 4, (beams + 1) // 2
        image = weight.reshape(len(weight), 16, rows, columns)
        weight = image.transpose(0, 2, 3, 1).reshape(len(weight), -1)
    if name == "trunk.0":
        weight = weight.copy()
        weight[:, 192:] *= network.scale.cpu().numpy()
    return weight.T


def _array(name: str, values: NDArray[np.float32]) -> str:
    flat = np.ascontiguousarray(values, np.float32).ravel()
    numbers = [f"{float(value):.9g}" for value in flat]
    text = ",".join(n + "f" if "." in n or "e" in n else n + ".0f" for n in numbers)
    return f"static const float navrl_{name.replace('.', '_')}[{flat.size}] = {{{text}}};\n"


_HEAD = """/* A policy trained with navrl. Call navrl_command; contract.yaml explains its inputs. */
#ifndef NAVRL_POLICY_H
#define NAVRL_POLICY_H
#include <math.h>
#include <string.h>
"""

_LAYERS = """
static void navrl_linear(const float *x, int inputs, int outputs, const float *weight,
                         const float *bias, float *y) {
  for (int o = 0; o < outputs; o++) y[o] = bias[o];
  for (int i = 0; i < inputs; i++) {
    const float value = x[i];
    const float *row = weight + i * outputs;
    for (int o = 0; o < outputs; o++) y[o] += value * row[o];
  }
}

static void navrl_leaky(float *x, int n) {
  for (int i = 0; i < n; i++) x[i] = x[i] > 0 ? x[i] : 0.01f * x[i];
}

static void navrl_norm(float *x, int n, const float *weight, const float *bias) {
  float mean = 0, square = 0;
  for (int i = 0; i < n; i++) mean += x[i];
  mean /= n;
  for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / sqrtf(square / n + 1e-5f);
  for (int i = 0; i < n; i++) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

/* A convolution of 5 azimuths x 3 beams and an ELU; images are [azimuth][beam][channel]. */
static void navrl_convolve(const float *x, int rows, int beams, int channels, int down, int across,
                           int outputs, const float *weight, const float *bias, float *y) {
  const int out_rows = (rows + down - 1) / down, out_beams = (beams + across - 1) / across;
  for (int i = 0; i < out_rows; i++)
    for (int j = 0; j < out_beams; j++) {
      float *sum = y + (i * out_beams + j) * outputs;
      for (int o = 0; o < outputs; o++) sum[o] = bias[o];
      for (int k = 0; k < 5; k++) {
        int row = i * down + k - 2;
        if (NAVRL_CIRCULAR) row = (row + rows) % rows;
        if (row < 0 || row >= rows) continue;
        for (int l = 0; l < 3; l++) {
          const int beam = j * across + l - 1;
          if (beam < 0 || beam >= beams) continue;
          for (int c = 0; c < channels; c++) {
            const float value = x[(row * beams + beam) * channels + c];
            const float *w = weight + ((c * 5 + k) * 3 + l) * outputs;
            for (int o = 0; o < outputs; o++) sum[o] += value * w[o];
          }
        }
      }
      for (int o = 0; o < outputs; o++) sum[o] = sum[o] > 0 ? sum[o] : expm1f(sum[o]);
    }
}
"""

_COMMAND = """
/* The nearest obstacles in reach, nearest first; returns how many. */
static int navrl_nearest(const float *position, const float *obstacles, int count, int *index) {
  float squared[NAVRL_OBSERVED];
  int found = 0;
  for (int k = 0; k < count; k++) {
    const float *track = obstacles + 8 * k;
    if (!(track[6] > 0)) continue;
    const float x = track[0] - position[0], y = track[1] - position[1], d = x * x + y * y;
    if (d > NAVRL_DETECTION_RANGE * NAVRL_DETECTION_RANGE) continue;
    int place = found;
    while (place > 0 && squared[place - 1] > d) place--;
    if (place >= NAVRL_OBSERVED) continue;
    if (found < NAVRL_OBSERVED) found++;
    for (int m = found - 1; m > place; m--) {
      squared[m] = squared[m - 1];
      index[m] = index[m - 1];
    }
    squared[place] = d;
    index[place] = k;
  }
  return found;
}

static void navrl_track(const float *position, const float *track, float c, float s, float *row) {
  const float x = track[0] - position[0], y = track[1] - position[1];
  const int tall = NAVRL_PLANAR || track[7] > 1.0f;
  const float z = tall ? 0 : track[2] - position[2];
  const float distance = sqrtf(x * x + y * y + z * z);
  const float inverse = 1.0f / (distance > 1e-6f ? distance : 1e-6f);
  row[0] = (x * c + y * s) * inverse;
  row[1] = (y * c - x * s) * inverse;
  row[2] = z * inverse;
  row[3] = sqrtf(x * x + y * y);
  row[4] = z;
  row[5] = track[3] * c + track[4] * s;
  row[6] = track[4] * c - track[3] * s;
  row[7] = NAVRL_PLANAR ? 0 : track[5];
  row[8] = track[6] * 4 - 1;
  row[9] = tall ? 0 : 1;
}

#if NAVRL_RELATIVE
/* How an obstacle approaches: relative velocity; when, where and how near it is closest. */
static void navrl_relate(const float *track, const float *velocity, float *found) {
  const float length = track[0] * track[0] + track[1] * track[1] + track[2] * track[2];
  if (!(length > NAVRL_PRESENT)) return;
  const float distance = sqrtf(track[3] * track[3] + track[4] * track[4]);
  float time = 0, square = 0, speed = NAVRL_SLOWEST;
  for (int i = 0; i < 3; i++) {
    found[i] = (track[5 + i] - velocity[i]) * (i < 2 ? 1 : track[9]);
    time -= track[i] * distance * found[i];
    speed += found[i] * found[i];
  }
  time /= speed;
  found[3] = time < 0 ? 0 : (time > NAVRL_HORIZON ? NAVRL_HORIZON : time);
  for (int i = 0; i < 3; i++) {
    found[4 + i] = track[i] * distance + found[i] * found[3];
    square += found[4 + i] * found[4 + i];
  }
  found[7] = sqrtf(square) - (track[8] + 1) * NAVRL_HALF_CLASS;
}
#endif

static float navrl_concentration(float x) {
  return 1 + (x > 20 ? x : log1pf(expf(x))) + 1e-6f;
}

/* Velocity command in the world frame, m/s. obstacles: count rows of x y z vx vy vz width height,
 * width <= 0 is an empty slot. */
static void navrl_command(const float position[3], const float velocity[3], const float goal[3],
                          const float start[3], const float *lidar, const float *obstacles,
                          int count, float command[3]) {
  const float ax = goal[0] - start[0], ay = goal[1] - start[1], length = sqrtf(ax * ax + ay * ay);
  const float c = length > 1e-6f ? ax / length : 1, s = length > 1e-6f ? ay / length : 0;
  float image[NAVRL_AZIMUTHS * NAVRL_BEAMS];
  float first[NAVRL_AZIMUTHS * NAVRL_BEAMS * 4], second[NAVRL_ROWS2 * NAVRL_BEAMS * 16];
  float third[NAVRL_ROWS3 * NAVRL_BEAMS3 * 16];
  float features[200], one[256], two[256], heads[6], unit[3];
  float tracks[NAVRL_OBSERVED * (10 + NAVRL_RELATIVE)];
  for (int i = 0; i < NAVRL_AZIMUTHS * NAVRL_BEAMS; i++) {
    const float near = NAVRL_RANGE - lidar[i];
    image[i] = near < 0 ? 0 : (near > NAVRL_RANGE ? NAVRL_RANGE : near);
  }
  navrl_convolve(image, NAVRL_AZIMUTHS, NAVRL_BEAMS, 1, 1, 1, 4, navrl_lidar_0_weight,
                 navrl_lidar_0_bias, first);
  navrl_convolve(first, NAVRL_AZIMUTHS, NAVRL_BEAMS, 4, 2, 1, 16, navrl_lidar_2_weight,
                 navrl_lidar_2_bias, second);
  navrl_convolve(second, NAVRL_ROWS2, NAVRL_BEAMS, 16, 2, 2, 16, navrl_lidar_4_weight,
                 navrl_lidar_4_bias, third);
  navrl_linear(third, NAVRL_ROWS3 * NAVRL_BEAMS3 * 16, 128, navrl_lidar_7_weight,
               navrl_lidar_7_bias, features);
  navrl_norm(features, 128, navrl_lidar_8_weight, navrl_lidar_8_bias);

  const float x = goal[0] - position[0], y = goal[1] - position[1];
  const float z = NAVRL_PLANAR ? 0 : goal[2] - position[2];
  const float distance = sqrtf(x * x + y * y + z * z);
  const float inverse = 1.0f / (distance > 1e-6f ? distance : 1e-6f);
  float *state = features + 192;
  state[0] = (x * c + y * s) * inverse;
  state[1] = (y * c - x * s) * inverse;
  state[2] = z * inverse;
  state[3] = sqrtf(x * x + y * y);
  state[4] = z;
  state[5] = velocity[0] * c + velocity[1] * s;
  state[6] = velocity[1] * c - velocity[0] * s;
  state[7] = NAVRL_PLANAR ? 0 : velocity[2];

  int index[NAVRL_OBSERVED];
  const int found = navrl_nearest(position, obstacles, count, index);
  memset(tracks, 0, sizeof tracks);
  for (int k = 0; k < found; k++)
    navrl_track(position, obstacles + 8 * index[k], c, s, tracks + 10 * k);
#if NAVRL_RELATIVE
  for (int k = 0; k < found; k++)
    navrl_relate(tracks + 10 * k, state + 5,
                 tracks + 10 * NAVRL_OBSERVED + NAVRL_RELATIVE * k);
#endif
  navrl_linear(tracks, NAVRL_OBSERVED * (10 + NAVRL_RELATIVE), 128, navrl_dynamic_0_weight,
               navrl_dynamic_0_bias, one);
  navrl_leaky(one, 128);
  navrl_norm(one, 128, navrl_dynamic_2_weight, navrl_dynamic_2_bias);
  navrl_linear(one, 128, 64, navrl_dynamic_3_weight, navrl_dynamic_3_bias, features + 128);
  navrl_leaky(features + 128, 64);
  navrl_norm(features + 128, 64, navrl_dynamic_5_weight, navrl_dynamic_5_bias);

  navrl_linear(features, 200, 256, navrl_trunk_0_weight, navrl_trunk_0_bias, one);
  navrl_leaky(one, 256);
  navrl_norm(one, 256, navrl_trunk_2_weight, navrl_trunk_2_bias);
  navrl_linear(one, 256, 256, navrl_trunk_3_weight, navrl_trunk_3_bias, two);
  navrl_leaky(two, 256);
  navrl_norm(two, 256, navrl_trunk_5_weight, navrl_trunk_5_bias);
  navrl_linear(two, 256, 6, navrl_heads_weight, navrl_heads_bias, heads);
  for (int i = 0; i < 3; i++) {
    const float alpha = navrl_concentration(heads[i]), beta = navrl_concentration(heads[i + 3]);
    unit[i] = alpha / (alpha + beta) * (2 * NAVRL_LIMIT) - NAVRL_LIMIT;
  }
  command[0] = unit[0] * c - unit[1] * s;
  command[1] = unit[0] * s + unit[1] * c;
  command[2] = fminf(fmaxf(unit[2], -NAVRL_CLIMB), NAVRL_CLIMB);
}
#endif
"""
