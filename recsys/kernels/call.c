/* Decoding of XLA's call frame, threads and scratch memory; see call.h. */

#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Queries, errors, attributes ---- */

int recsys_is_query(const XLA_FFI_CallFrame *frame) {
  /* jaxlib 0.11 renamed the type of `extension_start`. */
  const XLA_FFI_Metadata_Extension *extension = (const void *)frame->extension_start;
  return extension != NULL && extension->extension_base.type == XLA_FFI_Extension_Metadata;
}

XLA_FFI_Error *recsys_answer_query(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  if (metadata->struct_size < XLA_FFI_Metadata_STRUCT_SIZE) {
    return recsys_fail(frame, "XLA's FFI metadata is older than the headers we were built with");
  }
  metadata->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  metadata->api_version.extension_start = NULL;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  /* Zero means "none" for all further fields (so far the state's type). */
  size_t known = offsetof(XLA_FFI_Metadata, traits) + sizeof metadata->traits;
  memset((char *)metadata + known, 0, sizeof *metadata - known);
  return NULL;
}

XLA_FFI_Error *recsys_fail(XLA_FFI_CallFrame *frame, const char *message) {
  XLA_FFI_Error_Create_Args args = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
      .message = message,
      .errc = XLA_FFI_Error_Code_INVALID_ARGUMENT,
  };
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error *recsys_check(XLA_FFI_CallFrame *frame, int64_t n_args, int64_t n_rets) {
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) {
    return recsys_fail(frame, "recsys: a kernel was called outside the execution stage");
  }
  if (frame->args.size != n_args || frame->rets.size != n_rets) {
    return recsys_fail(frame, "recsys: a kernel was called with a wrong number of arrays");
  }
  int are_arrays = 1;
  for (int64_t i = 0; i < n_args; i++) are_arrays &= frame->args.types[i] == XLA_FFI_ArgType_BUFFER;
  for (int64_t i = 0; i < n_rets; i++) are_arrays &= frame->rets.types[i] == XLA_FFI_RetType_BUFFER;
  return are_arrays ? NULL : recsys_fail(frame, "recsys: an argument of a kernel is not an array");
}

static const char *type_name(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_F32: return "float32";
    case XLA_FFI_DataType_BF16: return "bfloat16";
    case XLA_FFI_DataType_S32: return "int32";
    default: return "another type";
  }
}

/* Appends the shape to `text` [size], with "?" for RECSYS_ANY. */
static void print_shape(char *text, size_t size, int64_t rank, const int64_t *dims) {
  size_t at = strlen(text);
  snprintf(text + at, size - at, "[");
  for (int64_t i = 0; i < rank && i < 4; i++) {
    at = strlen(text);
    const char *comma = i > 0 ? ", " : "";
    if (dims[i] < 0) {
      snprintf(text + at, size - at, "%s?", comma);
    } else {
      snprintf(text + at, size - at, "%s%lld", comma, (long long)dims[i]);
    }
  }
  at = strlen(text);
  snprintf(text + at, size - at, rank > 4 ? ", ...]" : "]");
}

static int fits(const RecsysArray *a) {
  if (a->buffer->dtype != a->dtype || a->buffer->rank != a->rank) return 0;
  for (int64_t i = 0; i < a->rank; i++) {
    /* Rows and entries are counted in 32 bits. */
    if (a->buffer->dims[i] > INT32_MAX) return 0;
    if (a->dims[i] != RECSYS_ANY && a->buffer->dims[i] != a->dims[i]) return 0;
  }
  return 1;
}

XLA_FFI_Error *recsys_expect(XLA_FFI_CallFrame *frame, const RecsysArray *arrays, int n) {
  for (int k = 0; k < n; k++) {
    const RecsysArray *a = &arrays[k];
    if (fits(a)) continue;
    char text[256];
    snprintf(text, sizeof text, "recsys: %s must be %s", a->name, type_name(a->dtype));
    print_shape(text, sizeof text, a->rank, a->dims);
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "; received %s", type_name(a->buffer->dtype));
    print_shape(text, sizeof text, a->buffer->rank, a->buffer->dims);
    return recsys_fail(frame, text);
  }
  return NULL;
}

static double scalar(const XLA_FFI_Scalar *s, double otherwise) {
  switch (s->dtype) {
    case XLA_FFI_DataType_F32: return *(const float *)s->value;
    case XLA_FFI_DataType_F64: return *(const double *)s->value;
    case XLA_FFI_DataType_S32: return *(const int32_t *)s->value;
    case XLA_FFI_DataType_S64: return (double)*(const int64_t *)s->value;
    case XLA_FFI_DataType_PRED: return *(const uint8_t *)s->value;
    default: return otherwise;
  }
}

double recsys_attr(const XLA_FFI_CallFrame *frame, const char *name, double otherwise) {
  const XLA_FFI_Attrs *attrs = &frame->attrs;
  size_t length = strlen(name);
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan *span = attrs->names[i];
    if (attrs->types[i] == XLA_FFI_AttrType_SCALAR && span->len == length &&
        memcmp(span->ptr, name, length) == 0) {
      return scalar((const XLA_FFI_Scalar *)attrs->attrs[i], otherwise);
    }
  }
  return otherwise;
}

/* ---- Threads ---- */

static atomic_int worker_limit;

void recsys_limit_workers(int limit) { atomic_store(&worker_limit, limit); }

int recsys_workers(XLA_FFI_CallFrame *frame) {
  int64_t n = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {
      .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE,
      .ctx = frame->ctx,
      .num_threads = &n,
  };
  XLA_FFI_Error *error = frame->api->XLA_FFI_ThreadPool_NumThreads(&args);
  if (error != NULL) {
    XLA_FFI_Error_Destroy_Args destroy = {
        .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    frame->api->XLA_FFI_Error_Destroy(&destroy);
    return 1;
  }
  /* With simulated devices XLA's pool has more threads than there are processors. */
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors > 0 && n > processors) n = processors;
  int limit = atomic_load(&worker_limit);
  if (limit > 0 && n > limit) n = limit;
  if (n > RECSYS_MAX_WORKERS) n = RECSYS_MAX_WORKERS;
  return n < 1 ? 1 : (int)n;
}

/* The work of one call. It may outlive the call: a helper that XLA starts late finds all
   tasks taken, touches nothing else, and drops its reference. */
typedef struct {
  RecsysPhase phases[RECSYS_MAX_PHASES];
  int n_phases;
  void *context;
  atomic_int references;
  atomic_int next_worker;
  pthread_mutex_t lock;
  pthread_cond_t phase_done;
  _Alignas(64) atomic_llong taken[RECSYS_MAX_PHASES];
  _Alignas(64) atomic_llong done[RECSYS_MAX_PHASES];
} Work;

static void drop(Work *work) {
  if (atomic_fetch_sub(&work->references, 1) != 1) return;
  pthread_cond_destroy(&work->phase_done);
  pthread_mutex_destroy(&work->lock);
  free(work);
}

/* Returns whether phase `p` is done, checking `spins` times. */
static int spin(Work *work, int p, int spins) {
  for (int i = 0; i < spins; i++) {
    if (atomic_load_explicit(&work->done[p], memory_order_acquire) >= work->phases[p].n_tasks) {
      return 1;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
  }
  return 0;
}

/* Waits until phase `p` is done. No deadlock: every unfinished task is being run by a thread
   that doesn't wait. */
static void wait_for(Work *work, int p) {
  if (spin(work, p, 2000)) return;
  pthread_mutex_lock(&work->lock);
  while (atomic_load(&work->done[p]) < work->phases[p].n_tasks) {
    pthread_cond_wait(&work->phase_done, &work->lock);
  }
  pthread_mutex_unlock(&work->lock);
}

static void finish_task(Work *work, int p) {
  if (atomic_fetch_add(&work->done[p], 1) + 1 < work->phases[p].n_tasks) return;
  pthread_mutex_lock(&work->lock);
  pthread_cond_broadcast(&work->phase_done);
  pthread_mutex_unlock(&work->lock);
}

static void take_part(Work *work, int worker) {
  for (int p = 0; p < work->n_phases; p++) {
    const RecsysPhase *phase = &work->phases[p];
    for (;;) {
      int64_t task = atomic_fetch_add(&work->taken[p], 1);
      if (task >= phase->n_tasks) break;
      phase->run(work->context, task, worker);
      finish_task(work, p);
    }
    wait_for(work, p);
  }
}

static void help(void *data) {
  Work *work = data;
  take_part(work, atomic_fetch_add(&work->next_worker, 1));
  drop(work);
}

static Work *new_work(int workers, const RecsysPhase *phases, int n_phases, void *context) {
  Work *work = NULL;
  if (posix_memalign((void **)&work, 64, sizeof *work) != 0) return NULL;
  memset(work, 0, sizeof *work);
  memcpy(work->phases, phases, (size_t)n_phases * sizeof *phases);
  work->n_phases = n_phases;
  work->context = context;
  atomic_init(&work->references, workers);
  atomic_init(&work->next_worker, 1);
  pthread_mutex_init(&work->lock, NULL);
  pthread_cond_init(&work->phase_done, NULL);
  return work;
}

static void schedule(XLA_FFI_CallFrame *frame, Work *work) {
  XLA_FFI_ThreadPool_Schedule_Args args = {
      .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE,
      .ctx = frame->ctx,
      .task = help,
      .data = work,
  };
  XLA_FFI_Error *error = frame->api->XLA_FFI_ThreadPool_Schedule(&args);
  if (error == NULL) return;
  XLA_FFI_Error_Destroy_Args destroy = {
      .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  frame->api->XLA_FFI_Error_Destroy(&destroy);
  drop(work);
}

static void run_alone(const RecsysPhase *phases, int n_phases, void *context) {
  for (int p = 0; p < n_phases; p++) {
    for (int64_t task = 0; task < phases[p].n_tasks; task++) phases[p].run(context, task, 0);
  }
}

void recsys_run(XLA_FFI_CallFrame *frame, int workers, const RecsysPhase *phases, int n_phases,
                void *context) {
  Work *work = workers > 1 ? new_work(workers, phases, n_phases, context) : NULL;
  if (work == NULL) {
    run_alone(phases, n_phases, context);
    return;
  }
  for (int i = 1; i < workers; i++) schedule(frame, work);
  take_part(work, 0);
  drop(work);
}

/* ---- Scratch memory ---- */

/* Free blocks, most recently used first. A header before the memory has the block's size. */
typedef struct Block {
  size_t bytes;
  struct Block *next;
} Block;

enum { HEADER = 64, KEPT_BLOCKS = 64 };

static pthread_mutex_t scratch_lock = PTHREAD_MUTEX_INITIALIZER;
static Block *free_blocks;

static Block *unlink_fitting(size_t bytes) {
  for (Block **at = &free_blocks; *at != NULL; at = &(*at)->next) {
    /* Much larger blocks are left for calls that need them. */
    if ((*at)->bytes >= bytes && (*at)->bytes / 4 <= bytes) {
      Block *block = *at;
      *at = block->next;
      return block;
    }
  }
  return NULL;
}

void *recsys_scratch_take(size_t bytes) {
  if (bytes < 4096) bytes = 4096;
  pthread_mutex_lock(&scratch_lock);
  Block *block = unlink_fitting(bytes);
  pthread_mutex_unlock(&scratch_lock);
  if (block == NULL) {
    if (posix_memalign((void **)&block, 64, HEADER + bytes) != 0) return NULL;
    block->bytes = bytes;
  }
  return (char *)block + HEADER;
}

/* Returns the blocks beyond the first KEPT_BLOCKS, cut off from the list. */
static Block *surplus(void) {
  Block *block = free_blocks;
  for (int i = 1; block != NULL && i < KEPT_BLOCKS; i++) block = block->next;
  if (block == NULL) return NULL;
  Block *rest = block->next;
  block->next = NULL;
  return rest;
}

void recsys_scratch_give(void *memory) {
  if (memory == NULL) return;
  Block *block = (Block *)((char *)memory - HEADER);
  pthread_mutex_lock(&scratch_lock);
  block->next = free_blocks;
  free_blocks = block;
  Block *rest = surplus();
  pthread_mutex_unlock(&scratch_lock);
  while (rest != NULL) {
    Block *next = rest->next;
    free(rest);
    rest = next;
  }
}
