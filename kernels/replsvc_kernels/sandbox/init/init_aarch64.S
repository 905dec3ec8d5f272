// Pid 1 of a session's pid namespace: it does nothing, and the kernel reaps for it.
//
//   clang --target=aarch64-linux-gnu -c -o init.o init_aarch64.S && llvm-objcopy -O binary -j .text init.o
//
// Every call is one that may fail without harm: there is nobody to tell.
        .text
        .globl  _start
_start:
        // prctl(PR_SET_DUMPABLE, 0): or /proc/1/root shows a session the tree it was cut from.
        mov     x8, #167
        mov     x0, #4
        mov     x1, #0
        svc     #0
        // prctl(PR_SET_NAME, name)
        mov     x8, #167
        mov     x0, #15
        adr     x1, name
        svc     #0
        // setsid(): what the server's group or terminal is sent is not for us.
        mov     x8, #157
        svc     #0
        // close_range(0, ~0, 0)
        mov     x8, #436
        mov     x0, #0
        mov     w1, #-1
        mov     x2, #0
        svc     #0
        // rt_sigaction(SIGCHLD, SIG_IGN): whoever ends leaves no zombie, adopted or not, and nothing
        // ever has to wake us. All else is ignored because pid 1 has no handler for it.
        stp     xzr, xzr, [sp, #-16]!   // sa_restorer, sa_mask
        mov     x9, #1                  // SIG_IGN
        stp     x9, xzr, [sp, #-16]!    // sa_handler, sa_flags
        mov     x8, #134
        mov     x0, #17
        mov     x1, sp
        mov     x2, #0
        mov     x3, #8
        svc     #0
        // ppoll(NULL, 0, NULL, NULL, 0): there is no pause; again when somebody outside stopped and
        // continued us.
1:      mov     x8, #73
        mov     x0, #0
        mov     x1, #0
        mov     x2, #0
        mov     x3, #0
        mov     x4, #0
        svc     #0
        b       1b
name:   .asciz  "replsvc-init"
