/* Shared by all kernels: XLA's call frame, threads, scratch memory.

   Plain C over XLA's C API (xla/ffi/api/c_api.h), for any C compiler. A kernel is a function
   body behind RECSYS_HANDLER(name), which __init__.py registers as the FFI target
   "recsys_<name>" for the platform cpu:

       RECSYS_HANDLER(double_it) {
         const XLA_FFI_Buffer *x = recsys_arg(frame, 0);
         ...
         return NULL;                      // or recsys_fail(frame, "why")
       }

   Each <stem>.c except call.c also defines RECSYS_SELF_CHECK(<stem>): it computes a small
   example with a known result and returns 0 if the result is right. The function's name ends
   with RECSYS_VARIANT, which the build defines, so loading fails for an object that was
   compiled for another kind of processor. */

#ifndef RECSYS_CALL_H_
#define RECSYS_CALL_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

#define RECSYS_EXPORT __attribute__((visibility("default")))
#define RECSYS_INLINE static inline __attribute__((always_inline))

#define RECSYS_HANDLER(name)                                          \
  static XLA_FFI_Error *name##_execute(XLA_FFI_CallFrame *frame);     \
  RECSYS_EXPORT XLA_FFI_Error *recsys_##name(XLA_FFI_CallFrame *frame) { \
    if (recsys_is_query(frame)) return recsys_answer_query(frame);    \
    return name##_execute(frame);                                     \
  }                                                                   \
  static XLA_FFI_Error *name##_execute(XLA_FFI_CallFrame *frame)

#define RECSYS_SELF_CHECK(stem) RECSYS_SELF_CHECK_OF(stem, RECSYS_VARIANT)
#define RECSYS_SELF_CHECK_OF(stem, variant) RECSYS_SELF_CHECK_NAMED(stem, variant)
#define RECSYS_SELF_CHECK_NAMED(stem, variant) \
  RECSYS_EXPORT int recsys_##stem##_self_check_##variant(void)

/* XLA queries each handler's version before the first call. */
int recsys_is_query(const XLA_FFI_CallFrame *frame);
XLA_FFI_Error *recsys_answer_query(XLA_FFI_CallFrame *frame);

XLA_FFI_Error *recsys_fail(XLA_FFI_CallFrame *frame, const char *message);

/* Arguments and results. Callers aren't trusted: a kernel reads an array only after
   recsys_check has checked the number of arrays, and recsys_expect its type and sizes. */
XLA_FFI_Error *recsys_check(XLA_FFI_CallFrame *frame, int64_t n_args, int64_t n_rets);

RECSYS_INLINE const XLA_FFI_Buffer *recsys_arg(const XLA_FFI_CallFrame *frame, int64_t i) {
  return (const XLA_FFI_Buffer *)frame->args.args[i];
}

RECSYS_INLINE const XLA_FFI_Buffer *recsys_ret(const XLA_FFI_CallFrame *frame, int64_t i) {
  return (const XLA_FFI_Buffer *)frame->rets.rets[i];
}

/* Required type, rank and sizes of an array; RECSYS_ANY allows any size. */
enum { RECSYS_ANY = -1 };
typedef struct {
  const char *name;
  const XLA_FFI_Buffer *buffer;
  XLA_FFI_DataType dtype;
  int64_t rank;
  int64_t dims[2];
} RecsysArray;

/* Returns an error for the first of `n` arrays that doesn't match; NULL if all match. */
XLA_FFI_Error *recsys_expect(XLA_FFI_CallFrame *frame, const RecsysArray *arrays, int n);

/* Returns dimension `axis` of `buffer`; -2 if its rank is lower. */
RECSYS_INLINE int64_t recsys_dim(const XLA_FFI_Buffer *buffer, int64_t axis) {
  return axis < buffer->rank ? buffer->dims[axis] : -2;
}

/* Tables are float32 or bfloat16. */
RECSYS_INLINE XLA_FFI_DataType recsys_table_type(const XLA_FFI_Buffer *table) {
  return table->dtype == XLA_FFI_DataType_BF16 ? XLA_FFI_DataType_BF16 : XLA_FFI_DataType_F32;
}

/* Returns the scalar attribute `name` of any numeric type; `otherwise` if it is absent. */
double recsys_attr(const XLA_FFI_CallFrame *frame, const char *name, double otherwise);

/* Threads. A call is a list of phases. Each phase has a number of tasks, which may run in any
   order and on any thread, and starts when the previous phase is done. The calling thread takes
   part and can finish alone; helpers are free threads of XLA's pool. `run` gets the phase's
   `context`, the task's number, and a worker number below recsys_workers(frame), which no other
   thread has at that time.

   Results must not depend on the thread of a task: split the work by its results (bags, rows),
   never by the number of workers. */
typedef struct {
  int64_t n_tasks;
  void (*run)(void *context, int64_t task, int worker);
} RecsysPhase;

enum { RECSYS_MAX_PHASES = 8, RECSYS_MAX_WORKERS = 64 };

/* Returns the largest number of threads of a call: 1 … RECSYS_MAX_WORKERS. */
int recsys_workers(XLA_FFI_CallFrame *frame);

/* Runs all phases. `workers` is at most recsys_workers(frame); 1 runs everything on the
   calling thread, and allows `frame` to be NULL. */
void recsys_run(XLA_FFI_CallFrame *frame, int workers, const RecsysPhase *phases, int n_phases,
                void *context);

/* Scratch memory, which is reused by later calls so that its pages are faulted in once.
   Aligned to 64 bytes, uninitialised. Returns NULL if there is no memory. */
void *recsys_scratch_take(size_t bytes);
void recsys_scratch_give(void *memory);

/* Limits the number of threads of a call, for tests; 0 removes the limit. */
RECSYS_EXPORT void recsys_limit_workers(int limit);

#endif  // RECSYS_CALL_H_
