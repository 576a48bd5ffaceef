package execs

import (
	"io"
	"os"
	"syscall"
)

// pipes are a command's three streams. The command's ends block, as programs expect; ours don't hold a thread.
type pipes struct {
	stdin          *os.File
	stdout, stderr *os.File
	theirs         [3]int
}

func open(withInput bool) (*pipes, error) {
	made := &pipes{theirs: [3]int{-1, -1, -1}}
	err := made.openInput(withInput)
	if err == nil {
		made.stdout, made.theirs[1], err = outward("stdout")
	}
	if err == nil {
		made.stderr, made.theirs[2], err = outward("stderr")
	}
	if err != nil {
		made.closeTheirs()
		made.closeOurs()
		return nil, err
	}
	return made, nil
}

// openInput prefers /dev/null for no input: some programs read a pipe that they didn't ask for.
func (p *pipes) openInput(wanted bool) error {
	if !wanted {
		if null, err := openNull("/dev/null"); err == nil {
			p.theirs[0] = null
			return nil
		}
	}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return err
	}
	p.theirs[0] = ends[0]
	if !wanted {
		return syscall.Close(ends[1])
	}
	p.stdin = ours(ends[1], "stdin")
	return nil
}

// openNull doesn't wait, and takes nothing but the device: root in the sandbox can put a pipe in its place, which no
// writer ever opens, or a file that never ends.
func openNull(path string) (int, error) {
	const null = 1<<8 | 3 // its major and minor number
	descriptor, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	var found syscall.Stat_t
	if err := syscall.Fstat(descriptor, &found); err != nil || found.Mode&syscall.S_IFMT != syscall.S_IFCHR || found.Rdev != null {
		syscall.Close(descriptor)
		return -1, syscall.ENODEV
	}
	return descriptor, syscall.SetNonblock(descriptor, false)
}

func outward(name string) (reader *os.File, writer int, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	return ours(ends[0], name), ends[1], nil
}

func ours(descriptor int, name string) *os.File {
	_ = syscall.SetNonblock(descriptor, true)
	return os.NewFile(uintptr(descriptor), name)
}

// feed writes the input, as far as the command wants it, and ends it.
func (p *pipes) feed(input []byte) {
	if p.stdin != nil {
		_, _ = p.stdin.Write(input)
		p.stdin.Close()
	}
}

// endInput stops feeding: what a command left behind may never read it.
func (p *pipes) endInput() {
	if p.stdin != nil {
		p.stdin.Close()
	}
}

func (p *pipes) closeTheirs() {
	for _, descriptor := range p.theirs {
		if descriptor >= 0 {
			syscall.Close(descriptor)
		}
	}
}

func (p *pipes) closeOurs() {
	for _, file := range []io.Closer{p.stdin, p.stdout, p.stderr} {
		if file.(*os.File) != nil {
			file.Close()
		}
	}
}
