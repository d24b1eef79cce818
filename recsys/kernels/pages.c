/* Huge pages for tables.

   Reading a random row of a table on 4 KiB pages also costs a walk of the page table; on 2 MiB
   pages reading is a third faster. With GLIBC_TUNABLES=glibc.malloc.hugetlb=1 a table is
   allocated on huge pages. Otherwise Linux can move it there in the background, some MiB per
   second. (MADV_COLLAPSE would do it at once, but stalls a busy machine.) */

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "pages.h"

#ifdef __linux__

#include <pthread.h>
#include <sys/mman.h>

enum {
  HUGE_PAGE = 1 << 21,
  SMALLEST = 1 << 24, /* the processor's TLB covers less than this */
  REGIONS = 64,
};

typedef struct {
  uintptr_t start, end;
  int is_asked;
} Region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Region regions[REGIONS];
static int n_seen;

static Region *find(uintptr_t start, uintptr_t end) {
  for (int i = 0; i < REGIONS; i++) {
    if (regions[i].start == start && regions[i].end == end) return &regions[i];
  }
  return NULL;
}

/* Memory that is seen a second time is a table; other memory may be temporary. */
static int is_table(uintptr_t start, uintptr_t end) {
  Region *region = find(start, end);
  if (region == NULL) {
    regions[n_seen++ % REGIONS] = (Region){start, end, 0};
    return 0;
  }
  int is_new = !region->is_asked;
  region->is_asked = 1;
  return is_new;
}

void recsys_ask_for_huge_pages(const void *memory, int64_t n_bytes) {
  if (n_bytes < SMALLEST) return;
  uintptr_t mask = ~(uintptr_t)(HUGE_PAGE - 1);
  uintptr_t start = ((uintptr_t)memory + HUGE_PAGE - 1) & mask;
  uintptr_t end = ((uintptr_t)memory + (uintptr_t)n_bytes) & mask;
  if (pthread_mutex_trylock(&lock) != 0) return;
  int is_due = is_table(start, end);
  pthread_mutex_unlock(&lock);
  /* Failure has no effect: the kernel doesn't have or allow huge pages. */
  if (is_due) madvise((void *)start, end - start, MADV_HUGEPAGE);
}

#else

void recsys_ask_for_huge_pages(const void *memory, int64_t n_bytes) {
  (void)memory, (void)n_bytes;
}

#endif
