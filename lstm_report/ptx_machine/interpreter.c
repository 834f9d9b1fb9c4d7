/* A launch, one thread at a time, each until it waits, with a shadow of each word: of
   four bytes, or of one where a program accesses less than four (`grain`).

   Times are of one clock for all: a block's interval begins at its last barrier. Of two
   accesses in a block the first happens before the second if an interval began between
   them, or, within a warp, the second's lane has learnt of it by a bar.warp.sync. Of
   accesses in two blocks, if the first is not later than what the second's block has
   learnt of the first's. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef int8_t s8; typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef uint8_t b8; typedef uint16_t b16; typedef uint32_t b32; typedef uint64_t b64;
typedef float f32; typedef double f64; typedef u32 pred;
typedef __int128 s128; typedef unsigned __int128 u128;
typedef union {
  s8 s8; s16 s16; s32 s32; s64 s64; u8 u8; u16 u16; u32 u32; u64 u64;
  b8 b8; b16 b16; b32 b32; b64 b64; f32 f32; f64 f64; pred pred;
} reg;
enum { RUNS, AT_BARRIER, AT_WARP, AT_GRID, DONE };
enum { MISALIGNED, OUTSIDE, TRAPPED, ENDLESS, DIVERGED, GRID_DIVERGED, DEADLOCK,
       LAST_FATAL = DEADLOCK, UNWRITTEN, RACE };
enum { GLOBAL, SHARED, GENERIC, LOCAL, NOWHERE };           /* spaces */
enum { STRONG = 1, ACQUIRE = 2, RELEASE = 4 };              /* how */
enum { FREE, ALLOCATED, WRITTEN };                          /* state of a word */
enum { SYNC, IDX, UP, DOWN, BFLY, BALLOT, ANY, EVERY };      /* of a warp */
enum { COUNT = 1, AND, OR };                                /* of a block */
enum { FORWARD, REVERSE, RANDOM };                          /* order of threads */
enum { ALL = -1, SEVERAL = -1, PATIENCE = 1000, TURNS = 1 << 25,
       NOBODY_S = 0x7fc0dead,                 /* a NaN that nobody wrote */
       PLACE = 7 };                           /* numbers of a fault: see `note` */

typedef struct { s32 op, guard, sense, d, a, b, c, list, n, space, how, offset, fma; } row;
/* Accesses of a kind that nothing orders among themselves: the time of the last, its
   block (ALL: several), its warp (SEVERAL) and lanes, its row; of several blocks that run
   together, a vector of their times. */
typedef struct { s32 time, block, warp; u32 lanes; s32 vector, pc; } accesses;
/* What was done to a word since its last plain write, and what was released on it. */
typedef struct { accesses write, reads, strong_reads, strong_writes; s32 flag; } word;
/* Vectors over the blocks, each of an owner. */
typedef struct { s32 *times, *owners; s64 used, size; } pool;
typedef struct { u64 to, from; s32 size, group; const row *r; } copy;
typedef struct {
  reg *R; s64 pc, ran, fma, ran_before_spin, spin; copy *queue;
  s32 status, id, group, copies, room, carry;
  s32 learnt[32];                       /* of each lane, the accesses before that time */
} thread;
typedef struct {
  thread *threads; s32 id, began, *known, *pending;
  u8 *local; s64 first, critical, chain;
} block;
typedef struct {
  s64 slots, length, block[3], grid[3];
  s64 together, shared, words, grain, locals, order, most, seed;
  const row *code; const s32 *lists; const u64 *start; s64 special[7];
  u32 *memory; u8 *state; word *shadow;
  s64 *counts, *faults, *first;         /* by pc; kind and pc; kind, pc and PLACE */
  s64 accesses, critical, chain, now, blocks, per_block, base, changed, fatal, turns;
  pool readers, flags;
} machine;

/* Counts a fault, and keeps where the first of its kind and statement was: thread, block,
   space, address; of a race also the statement, thread and block of the other access. */
static s64 *note(machine *m, int kind, s64 pc, const thread *t, const block *b, s64 space,
                 u64 address) {
  s64 i = kind * m->length + pc, place[PLACE] = {t->id, b->id, space, address, -1};
  if (kind <= LAST_FATAL) m->fatal = 1;
  return m->faults[i]++ ? NULL : memcpy(m->first + PLACE * i, place, sizeof place);
}

static s32 *vector_of(machine *m, pool *p, s32 at, s64 owner) {
  return at >= 0 && at < p->used && p->owners[at] == owner ? p->times + at * m->blocks
                                                            : NULL;
}

static s32 *new_vector(machine *m, pool *p, s32 *at, s64 owner) {
  if (p->used == p->size) {
    p->size = 2 * p->size + 64;
    p->times = realloc(p->times, p->size * m->blocks * sizeof(s32));
    p->owners = realloc(p->owners, p->size * sizeof(s32));
  }
  *at = p->used++;
  p->owners[*at] = owner;
  return memset(p->times + *at * m->blocks, 0, m->blocks * sizeof(s32));
}

static void join(machine *m, s32 *to, const s32 *from) {
  for (s64 c = 0; c < m->blocks; c++) if (from[c] > to[c]) to[c] = from[c];
}

/* Whether accesses in the same block happen before what thread t does now. */
static int before(const block *b, const thread *t, const accesses *x, s32 time) {
  if (time < b->began) return 1;
  if (x->warp != t->id / 32) return 0;
  for (int lane = 0; lane < 32; lane++)
    if (x->lanes >> lane & 1 && lane != t->id % 32 && time >= t->learnt[lane]) return 0;
  return 1;
}

static int ordered(machine *m, block *b, thread *t, const accesses *x) {
  if (x->time < m->base) return 1;
  if (x->block == b->id) return before(b, t, x, x->time);
  return x->block != ALL && m->together && x->time <= b->known[x->block];
}

/* Whether what thread t does now conflicts with some accesses to a word. */
static int conflicts(machine *m, block *b, thread *t, const accesses *x, s64 owner) {
  s32 *v = vector_of(m, &m->readers, x->vector, owner);
  if (x->time < m->base || !v) return !ordered(m, b, t, x);
  for (s64 c = 0; c < m->blocks; c++)
    if (c != b->id && v[c] > b->known[c]) return 1;
  accesses own = *x;
  if (x->block != b->id) own.warp = SEVERAL;
  return v[b->id] >= m->base && !before(b, t, &own, v[b->id]);
}

/* One more access, of thread t now. */
static void add(machine *m, block *b, thread *t, accesses *x, s64 owner, s32 pc) {
  int old = ordered(m, b, t, x), mine = x->block == b->id, warp = t->id / 32;
  s32 *v = vector_of(m, &m->readers, x->vector, owner);
  x->pc = pc;
  if (!old && !mine && !v && !m->together) {
    x->block = ALL; x->time = m->now;
    return;
  }
  if (!old && !mine && !v) {
    v = new_vector(m, &m->readers, &x->vector, owner);
    v[x->block] = x->time;
  }
  if (v) v[b->id] = m->now;
  u32 lane = 1u << t->id % 32;
  x->lanes = !old && mine ? x->lanes | lane : lane;
  x->warp = !old && mine && x->warp != warp ? SEVERAL : warp;
  x->block = b->id; x->time = m->now;
}

/* Keeps an access to a word, and tells whether it races, and with which others. */
static int races(machine *m, block *b, thread *t, word *x, s64 w, int write, int strong,
                 s32 pc, accesses *others) {
  accesses *kinds[] = {&x->write, &x->strong_writes, &x->reads, &x->strong_reads};
  /* Two reads do not conflict, nor do two strong accesses. */
  int with[] = {1, !strong, write, write && !strong};
  int k = 0;
  while (k < 4 && !(with[k] && conflicts(m, b, t, kinds[k], 4 * w + k))) k++;
  if (k < 4) *others = *kinds[k];
  if (write && !strong) {                      /* all others happen before this one */
    for (int i = 0; i < 4; i++) *kinds[i] = (accesses){.vector = -1};
    add(m, b, t, &x->write, 4 * w, pc);
  } else {
    int i = write ? 1 : strong ? 3 : 2;
    add(m, b, t, kinds[i], 4 * w + i, pc);
  }
  return k < 4;
}

/* What a release publishes on a flag, and an acquire learns from it. */
static void synchronise(machine *m, block *b, word *x, s64 w, int update, int write,
                        int how) {
  if (!m->together) return;
  s32 *v = vector_of(m, &m->flags, x->flag, w);
  if (v && how & ACQUIRE) join(m, b->pending, v);
  if (!write) return;
  if (v && !update) memset(v, 0, m->blocks * sizeof(s32));
  if (!(how & RELEASE)) return;
  if (!v) v = new_vector(m, &m->flags, &x->flag, w);
  join(m, v, b->known);
  if (b->began - 1 > v[b->id]) v[b->id] = b->began - 1;
}

/* Checks an access of `size` bytes; returns where they are, NULL after a fault. */
static void *access(machine *m, block *b, thread *t, const row *r, u64 address, int read,
                    int write, int size) {
  s64 pc = r - m->code, space = r->space;
  if (space == GENERIC && address >= LOCAL_WINDOW) {
    space = LOCAL; address -= LOCAL_WINDOW;
  } else if (space == GENERIC && address >= SHARED_WINDOW) {
    space = SHARED; address -= SHARED_WINDOW;
  }
  if (address % size) { note(m, MISALIGNED, pc, t, b, space, address); return NULL; }
  s64 end = space == LOCAL ? m->locals : space == SHARED ? m->shared : 4 * m->words;
  if (address + size > (u64)end || address + size < address) {
    note(m, OUTSIDE, pc, t, b, space, address);
    return NULL;
  }
  if (space == LOCAL) return b->local + t->id * m->locals + address;
  u64 at = address + (space == SHARED ? 4 * b->first : 0);
  int told = 0;                         /* of an access to several words, once */
  for (u64 w = at / m->grain; w < (at + size + m->grain - 1) / m->grain; w++) {
    word *x = m->shadow + w;
    u64 place = address + m->grain * w - at;
    m->accesses++;
    if (m->state[w] == FREE) { note(m, OUTSIDE, pc, t, b, space, place); return NULL; }
    if (read && m->state[w] == ALLOCATED && !(told & 1)) {
      note(m, UNWRITTEN, pc, t, b, space, place);
      told |= 1;
    }
    int strong = r->how & STRONG;
    accesses others;
    if (races(m, b, t, x, w, write, strong, pc, &others) && !(told & 2)) {
      s64 *f = note(m, RACE, pc, t, b, space, place);
      int lane = others.lanes ? __builtin_ctz(others.lanes) : 0;
      int one = others.block != ALL && others.warp != SEVERAL && others.lanes == 1u << lane;
      if (f) {
        f[4] = others.pc;
        f[5] = one ? 32 * others.warp + lane : SEVERAL;
        f[6] = others.block;
      }
      told |= 2;
    }
    if (write) m->state[w] = WRITTEN;
    if (strong) synchronise(m, b, x, w, read && write, write, r->how);
  }
  return (u8 *)m->memory + at;
}

/* A copy takes place at any time until it is waited for: now for races with what came
   before, and nobody may read what it replaces. */
static int queue(machine *m, block *b, thread *t, const row *r) {
  copy c = {t->R[r->d].u64 + r->offset, t->R[r->a].u64 + r->list, r->n, t->group, r};
  u32 *to = access(m, b, t, r, c.to | SHARED_WINDOW, 0, 1, c.size);
  if (!to || !access(m, b, t, r, c.from, 1, 0, c.size)) return 0;
  s64 first = 4 * (to - m->memory) / m->grain;
  memset(m->state + first, ALLOCATED, c.size / m->grain);
  for (int k = 0; k < c.size / 4; k++) to[k] = NOBODY_S;
  if (t->copies == t->room) {
    t->room = 2 * t->room + 16;
    t->queue = realloc(t->queue, t->room * sizeof(copy));
  }
  t->queue[t->copies++] = c;
  return 1;
}

/* Copies arrive as late as they may: when they are waited for. */
static int arrive(machine *m, block *b, thread *t, const row *r) {
  int kept = 0;
  for (int k = 0; k < t->copies; k++) {
    copy c = t->queue[k];
    if (c.group >= t->group - r->n) { t->queue[kept++] = c; continue; }
    void *from = access(m, b, t, c.r, c.from, 1, 0, c.size);
    void *to = from ? access(m, b, t, c.r, c.to | SHARED_WINDOW, 0, 1, c.size) : NULL;
    if (!to) return 0;
    memcpy(to, from, c.size);
  }
  t->copies = kept;
  m->changed = 1;
  return 1;
}

static f64 saturated(f64 x) { return isnan(x) || x < 0 ? 0 : x > 1 ? 1 : x; }

/* A sum as a part of a longer one, of which the flag carries on. */
static u64 carried(thread *t, u128 sum, int bits, int sets) {
  if (sets) t->carry = sum >> bits & 1;
  return sum;
}

static u64 reversed(u64 a, int bits) {
  u64 y = 0;
  for (int i = 0; i < bits; i++) y |= (a >> i & 1) << (bits - 1 - i);
  return y;
}

static u64 field(u64 a, u32 first, u32 size, int is_signed) {
  first &= 255; size &= 255;
  s64 left = is_signed ? (s64)a >> (first < 63 ? first : 63) : first < 64 ? a >> first : 0;
  if (size == 0 || size > 63) return size ? left : 0;
  return is_signed ? left << (64 - size) >> (64 - size) : left & ((1ull << size) - 1);
}

static u64 inserted(u64 a, u64 b, u32 first, u32 size) {
  first &= 255; size &= 255;
  if (first > 63 || size == 0) return b;
  u64 mask = (size > 63 ? ~0ull : (1ull << size) - 1) << first;
  return (b & ~mask) | (a << first & mask);
}

static f32 flushed(f64 x) { f32 y = x; return fabsf(y) < 0x1p-126f ? copysignf(0, y) : y; }
static f64 upper_half(f64 x) { reg y = {.f64 = x}; y.u64 &= ~0xffffffffull; return y.f64; }

/* a b + c rounded up (1), down (-1) or towards zero (0); the product is exact. */
static f32 directed(f32 a, f32 b, f32 c, int way) {
  f64 p = (f64)a * b, s = p + c, of_p = s - c, lost = (p - of_p) + (c - (s - of_p));
  f32 y = s;
  f64 beyond = (s - y) + lost;
  way = way ? way : s > 0 ? -1 : 1;
  return beyond * way > 0 ? nextafterf(y, way * INFINITY) : y;
}

static s64 to_integer(f64 x, int bits, int is_signed) {
  f64 low = is_signed ? -ldexp(1, bits - 1) : 0, high = ldexp(1, bits - is_signed);
  if (isnan(x)) return 0;
  x = trunc(x);
  if (x < low) x = low;
  if (x >= high) return is_signed ? (s64)((1ull << (bits - 1)) - 1)
                                  : (s64)(bits == 64 ? ~0ull : (1ull << bits) - 1);
  return is_signed ? (s64)x : (s64)(u64)x;
}

#define D(kind) R[r->d].kind
#define A(kind) R[r->a].kind
#define B(kind) R[r->b].kind
#define C(kind) R[r->c].kind
#define STOP(kind) { note(m, kind, pc, t, b, NOWHERE, 0); t->pc = pc; return; }
#define REACH(kind, read, write)                                                        \
  kind *p = access(m, b, t, r, A(u64) + r->offset, read, write, r->n * sizeof(kind));   \
  if (!p) { t->pc = pc; return; }
/* What another thread may change: the others have their turn before the next try. */
#define TURN                                                                            \
  if (r->how) {                                                                         \
    t->ran = pc == t->spin ? t->ran_before_spin : t->ran;                               \
    t->ran_before_spin = t->ran; t->spin = pc; t->pc = pc + 1;                          \
    return;                                                                             \
  }
#define LOAD(kind) { REACH(kind, 1, 0)                                                  \
  for (int k = 0; k < r->n; k++) R[m->lists[r->list + k]].s64 = p[k];                   \
  TURN }
#define STORE(kind) { REACH(kind, 0, 1)                                                 \
  for (int k = 0; k < r->n; k++) {                                                      \
    kind new = R[m->lists[r->list + k]].kind;                                           \
    m->changed |= p[k] != new; p[k] = new;                                              \
  } }
#define UPDATE(kind, value) { REACH(kind, 1, 1)                                         \
  kind old = *p, new = value;                                                           \
  m->changed |= memcmp(&old, &new, sizeof old) != 0;                                    \
  *p = new; D(kind) = old;                                                              \
  TURN }

/* Thread t until it waits, has ended or is at fault. */
static void run(machine *m, block *b, thread *t) {
  reg *R = t->R;
  s64 turns = 0;
  for (s64 pc = t->pc;; pc++) {
    const row *r = m->code + pc;
    if (r->guard >= 0 && R[r->guard].pred != (u32)r->sense) continue;
    m->counts[pc]++;
    t->ran++;
    t->fma += r->fma;
    switch (r->op) {
      STATEMENTS
    }
  }
}

/* Lane by lane what shfl.sync gives; 0 if it asks a lane that takes no part. */
static int shuffle(thread *T, int lanes, const row *r, const s32 *at, u32 mask) {
  reg got[32];
  for (int lane = 0; lane < lanes; lane++) {
    if (!(mask >> lane & 1)) continue;
    reg *R = T[lane].R;
    int b = B(u32) & 31, clamp = C(u32) & 31, segment = C(u32) >> 8 & 31;
    int last = (lane & segment) | (clamp & ~segment);
    int from = r->n == IDX ? (lane & segment) | (b & ~segment)
               : r->n == BFLY ? lane ^ b : r->n == DOWN ? lane + b : lane - b;
    int inside = r->n == UP ? from >= last : from <= last;
    if (!inside) from = lane;
    if (from >= lanes || !(mask >> from & 1)) return 0;
    got[lane] = T[from].R[r->a];
    R[at[1]].pred = inside;
  }
  for (int lane = 0; lane < lanes; lane++)
    if (mask >> lane & 1) T[lane].R[r->d] = got[lane];
  return 1;
}

/* Of each lane what vote.sync gives. */
static void vote(thread *T, int lanes, const row *r, u32 mask) {
  u32 ballot = 0;
  for (int lane = 0; lane < lanes; lane++)
    if (mask >> lane & 1 && T[lane].R[r->a].pred != (u32)r->offset) ballot |= 1u << lane;
  for (int lane = 0; lane < lanes; lane++)
    if (mask >> lane & 1)
      T[lane].R[r->d].u32 = r->n == BALLOT ? ballot
                            : r->n == ANY ? ballot != 0 : ballot == mask;
}

static u32 mask_of(const machine *m, const thread *t, int lanes) {
  u32 mask = t->R[m->lists[m->code[t->pc].list]].u32;
  return lanes < 32 ? mask & ((1u << lanes) - 1) : mask;
}

/* What the lanes of a mask have done so far happens before what they do from now on. */
static void learn(machine *m, thread *T, int lanes, u32 mask) {
  s32 learnt[32] = {0};
  m->now++;
  for (int i = 0; i < lanes; i++)
    for (int k = 0; mask >> i & 1 && k < 32; k++)
      if (T[i].learnt[k] > learnt[k]) learnt[k] = T[i].learnt[k];
  for (int i = 0; i < lanes; i++) if (mask >> i & 1) learnt[i] = m->now;
  for (int i = 0; i < lanes; i++)
    if (mask >> i & 1) memcpy(T[i].learnt, learnt, sizeof learnt);
}

/* Lets lanes of a warp go on that wait for each other. */
static void meet(machine *m, block *b, int warp) {
  thread *T = b->threads + 32 * warp;
  int lanes = m->per_block - 32 * warp < 32 ? m->per_block - 32 * warp : 32;
  for (int first = 0; first < lanes; first++) {
    if (T[first].status != AT_WARP) continue;
    const row *r = m->code + T[first].pc;
    u32 mask = mask_of(m, T + first, lanes);
    int all = 1;
    for (int i = 0; i < lanes; i++)
      all &= !(mask >> i & 1) || (T[i].status == AT_WARP && T[i].pc == T[first].pc &&
                                  mask_of(m, T + i, lanes) == mask);
    if (!all) continue;
    if (r->n >= BALLOT) vote(T, lanes, r, mask);
    else if (r->n != SYNC && !shuffle(T, lanes, r, m->lists + r->list, mask))
      note(m, TRAPPED, T[first].pc, T + first, b, NOWHERE, 0);
    if (r->n == SYNC) learn(m, T, lanes, mask);
    for (int i = 0; i < lanes; i++)
      if (mask >> i & 1) { T[i].status = RUNS; T[i].pc++; }
    m->changed = 1;
  }
}

static int all_wait(const machine *m, const block *b, int status) {
  for (s64 i = 0; i < m->per_block; i++)
    if (b->threads[i].status != status || b->threads[i].pc != b->threads[0].pc) return 0;
  return 1;
}

/* A new interval of the block. */
static void go_on(machine *m, block *b) {
  s64 busiest = 0, most = 0;
  for (s64 i = 0; i < m->per_block; i++) {
    thread *t = b->threads + i;
    busiest = t->ran > busiest ? t->ran : busiest;
    most = t->fma > most ? t->fma : most;
    t->ran = t->fma = 0; t->spin = -1;
    if (t->status != DONE) { t->status = RUNS; t->pc++; }
  }
  b->critical += busiest; b->chain += most;
  b->began = ++m->now;
  if (m->together) join(m, b->known, b->pending);
  m->changed = 1;
}

static void pass_barrier(machine *m, block *b) {
  const row *r = m->code + b->threads[0].pc;
  u32 count = 0;
  for (s64 i = 0; r->n && i < m->per_block; i++) count += b->threads[i].R[r->a].pred;
  for (s64 i = 0; r->n && i < m->per_block; i++) {
    u32 result = r->n == AND ? count == m->per_block : r->n == OR ? count > 0 : count;
    b->threads[i].R[r->d].u32 = result;
  }
  go_on(m, b);
}

static void pass_grid(machine *m, block *blocks) {
  for (s64 k = 0; k < m->blocks; k++) go_on(m, blocks + k);
  m->base = ++m->now;
  m->readers.used = 0;
  for (s64 k = 0; k < m->blocks; k++) blocks[k].began = m->base;
}

/* Of a block in which nothing can run, or runs to an end: a thread, and what it does. */
static int stuck(machine *m, block *b, int endless) {
  for (s64 i = 0; i < m->per_block; i++) {
    thread *t = b->threads + i;
    if (t->status == DONE) continue;
    note(m, endless ? ENDLESS : t->status == AT_GRID ? GRID_DIVERGED
            : t->status == RUNS ? DEADLOCK : DIVERGED, t->pc, t, b, NOWHERE, 0);
    return 1;
  }
  return 0;
}

static void permute(machine *m, s64 *order, s64 count) {
  for (s64 i = 0; i < count; i++) order[i] = m->order == REVERSE ? count - 1 - i : i;
  for (s64 i = count - 1; m->order == RANDOM && i > 0; i--) {
    u64 seed = m->seed;
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    m->seed = seed;
    s64 other = seed % (i + 1), kept = order[i];
    order[i] = order[other]; order[other] = kept;
  }
}

/* Blocks until all their threads have ended. */
static void run_blocks(machine *m, block *blocks, s64 count, s64 *order) {
  int idle = 0;
  while (!m->fatal) {
    permute(m, order, count * m->per_block);
    m->changed = 0;
    for (s64 i = 0; i < count * m->per_block && !m->fatal; i++) {
      block *b = blocks + order[i] / m->per_block;
      thread *t = b->threads + order[i] % m->per_block;
      if (t->status == RUNS) run(m, b, t);
    }
    int grid = 1, done = 1;
    for (s64 k = 0; k < count && !m->fatal; k++) {
      for (int w = 0; 32 * w < m->per_block; w++) meet(m, blocks + k, w);
      if (all_wait(m, blocks + k, AT_BARRIER)) pass_barrier(m, blocks + k);
      grid &= all_wait(m, blocks + k, AT_GRID);
      for (s64 i = 0; i < m->per_block; i++) done &= blocks[k].threads[i].status == DONE;
    }
    if (done || m->fatal) break;
    if (grid && m->together) pass_grid(m, blocks);
    idle = m->changed ? 0 : idle + 1;
    int endless = (m->turns += count * m->per_block) > TURNS;
    for (s64 k = 0; (idle > PATIENCE || endless) && k < count; k++)
      if (stuck(m, blocks + k, endless)) break;
  }
  for (s64 k = 0; k < count; k++) {
    go_on(m, blocks + k);
    if (blocks[k].critical > m->critical) m->critical = blocks[k].critical;
    if (blocks[k].chain > m->chain) m->chain = blocks[k].chain;
  }
}

void launch(machine *m) {
  m->per_block = m->block[0] * m->block[1] * m->block[2];
  m->blocks = m->grid[0] * m->grid[1] * m->grid[2];
  m->fatal = m->turns = 0; m->base = ++m->now;
  s64 count = m->together ? m->blocks : 1, threads = count * m->per_block;
  s64 each = (m->shared + 3) / 4, whole = m->blocks > threads ? m->blocks : threads;
  block *blocks = calloc(count, sizeof(block));
  thread *T = calloc(threads, sizeof(thread));
  reg *registers = malloc(threads * m->slots * sizeof(reg));
  u8 *local = malloc(threads * m->locals + 1);
  s32 *vectors = calloc(2 * count * m->blocks, sizeof(s32));
  s64 *order = malloc(whole * sizeof(s64)), *sequence = malloc(m->blocks * sizeof(s64));
  permute(m, sequence, m->blocks);
  m->readers.used = m->flags.used = 0;
  for (s64 begin = 0; begin < m->blocks && !m->fatal; begin += count) {
    for (s64 k = 0; k < count; k++) {
      block *b = blocks + k;
      *b = (block){.threads = T + k * m->per_block, .began = ++m->now,
                   .known = vectors + 2 * k * m->blocks,
                   .pending = vectors + (2 * k + 1) * m->blocks,
                   .local = local + k * m->per_block * m->locals,
                   .first = m->words + k * each};
      b->id = m->together ? k : sequence[begin];
      for (s64 w = b->first; w < b->first + each; w++) m->memory[w] = NOBODY_S;
      for (s64 w = 4 * b->first / m->grain; w < 4 * (b->first + each) / m->grain; w++) {
        m->state[w] = ALLOCATED;
        m->shadow[w] = (word){{.vector = -1}, {.vector = -1}, {.vector = -1},
                              {.vector = -1}, .flag = -1};
      }
      for (s64 i = 0; i < m->per_block; i++) {
        thread *t = b->threads + i;
        free(t->queue);
        *t = (thread){.id = i, .spin = -1};
        t->R = registers + (k * m->per_block + i) * m->slots;
        memcpy(t->R, m->start, m->slots * sizeof(reg));
        s64 x = m->block[0], y = m->block[1], X = m->grid[0], Y = m->grid[1];
        s64 values[] = {i % x, i / x % y, i / x / y,
                        b->id % X, b->id / X % Y, b->id / X / Y, i % 32};
        for (int n = 0; n < 7; n++) t->R[m->special[n]].s64 = values[n];
      }
    }
    run_blocks(m, blocks, count, order);
  }
  m->now++;
  for (s64 i = 0; i < threads; i++) free(T[i].queue);
  free(blocks); free(T); free(registers); free(local); free(vectors); free(order);
  free(sequence); free(m->readers.times); free(m->readers.owners); free(m->flags.times);
  free(m->flags.owners);
  memset(&m->readers, 0, sizeof(pool)); memset(&m->flags, 0, sizeof(pool));
}
