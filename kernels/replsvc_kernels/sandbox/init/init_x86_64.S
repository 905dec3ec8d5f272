# Pid 1 of a session's pid namespace: it does nothing, and the kernel reaps for it.
#
#   gcc -c -o init.o init_x86_64.S && objcopy -O binary -j .text init.o
#
# Every call is one that may fail without harm: there is nobody to tell.
        .text
        .globl  _start
_start:
        # prctl(PR_SET_DUMPABLE, 0): or /proc/1/root shows a session the tree it was cut from.
        mov     $157, %eax
        mov     $4, %edi
        xor     %esi, %esi
        syscall
        # prctl(PR_SET_NAME, name)
        mov     $157, %eax
        mov     $15, %edi
        lea     name(%rip), %rsi
        syscall
        # setsid(): what the server's group or terminal is sent is not for us.
        mov     $112, %eax
        syscall
        # close_range(0, ~0, 0)
        mov     $436, %eax
        xor     %edi, %edi
        mov     $-1, %esi
        xor     %edx, %edx
        syscall
        # rt_sigaction(SIGCHLD, SIG_IGN): whoever ends leaves no zombie, adopted or not, and nothing
        # ever has to wake us. All else is ignored because pid 1 has no handler for it.
        xor     %eax, %eax
        push    %rax                    # sa_mask
        push    %rax                    # sa_restorer
        push    %rax                    # sa_flags
        push    $1                      # SIG_IGN
        mov     $13, %eax
        mov     $17, %edi
        mov     %rsp, %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        syscall
        # pause(), again when somebody outside stopped and continued us.
1:      mov     $34, %eax
        syscall
        jmp     1b
name:   .asciz  "replsvc-init"
