// Package output keeps what a caller gets of a command's output: its beginning and its end, in bounded memory, without
// ever making the command wait.
package output

import (
	"sync"
	"sync/atomic"
)

// ChunkSize is the unit in which output is kept and sent. In base64 a chunk is a line of less than 64 KiB, which is
// what line readers of HTTP clients take.
const ChunkSize = 32 << 10

// Pool is the memory that all commands of a sandbox share for their output.
type Pool struct {
	limit int64
	taken atomic.Int64
	spare sync.Pool
}

// NewPool makes a pool of so many bytes.
func NewPool(bytes int64) *Pool {
	pool := &Pool{limit: max(bytes/ChunkSize, 1)}
	pool.spare.New = func() any {
		chunk := make([]byte, 0, ChunkSize)
		return &chunk
	}
	return pool
}

// take gives an empty chunk, or nil when all are in use. Insisting goes over the limit.
func (p *Pool) take(insist bool) []byte {
	if p.taken.Add(1) > p.limit && !insist {
		p.taken.Add(-1)
		return nil
	}
	return (*p.spare.Get().(*[]byte))[:0]
}

func (p *Pool) give(chunk []byte) {
	p.taken.Add(-1)
	p.spare.Put(&chunk)
}

// Scratch lends a buffer of one chunk for reading.
func (p *Pool) Scratch() (buffer []byte, giveBack func()) {
	chunk := p.spare.Get().(*[]byte)
	return (*chunk)[:ChunkSize], func() { p.spare.Put(chunk) }
}
