/* A pretended GPU runtime: every rank spins until all ranks have launched `target` collectives, then works a little. */

#include <time.h>

static int all_launched(const volatile long *counts, long world, long target)
{
    for (long rank = 0; rank < world; rank++)
        if (counts[rank] < target)
            return 0;
    return 1;
}

static long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((noinline)) int cuCtxSynchronize(const volatile long *counts, long world, long target)
{
    while (!all_launched(counts, world, target))
        ;
    for (long end = now_ns() + 5000000L; now_ns() < end;) /* the kernel itself: 5 ms */
        ;
    return 0;
}

__attribute__((noinline)) int cudaStreamSynchronize(const volatile long *counts, long world, long target)
{
    int status = cuCtxSynchronize(counts, world, target);
    __asm__ volatile("" ::: "memory"); /* no tail call: this function stays on the stack */
    return status;
}
