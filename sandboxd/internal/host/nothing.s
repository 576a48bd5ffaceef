#include "textflag.h"

// A signal handler that does nothing. It is no Go function: the kernel calls it, on a signal stack.
TEXT ·nothing(SB), NOSPLIT|NOFRAME, $0-0
	RET

DATA ·nothingAddress(SB)/8, $·nothing(SB)
GLOBL ·nothingAddress(SB), NOPTR|RODATA, $8
