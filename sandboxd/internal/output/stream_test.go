package output

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func letters(count int) []byte {
	made := make([]byte, count)
	for index := range made {
		made[index] = byte('a' + index%23)
	}
	return made
}

func drain(from func([]byte) int) []byte {
	var all bytes.Buffer
	buffer := make([]byte, 1000)
	for count := from(buffer); count > 0; count = from(buffer) {
		all.Write(buffer[:count])
	}
	return all.Bytes()
}

// parts reads in small pieces, as pipes do.
type parts struct {
	left []byte
	size int
}

func (p *parts) Read(buffer []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	count := copy(buffer[:min(len(buffer), p.size)], p.left)
	p.left = p.left[count:]
	return count, nil
}

func TestTheFirstAndTheLastHalfAreKept(t *testing.T) {
	const chunk = ChunkSize
	cases := map[string]struct{ limit, total, piece int }{
		"nothing written":                 {10, 0, 5},
		"less than the limit":             {10, 7, 3},
		"exactly the limit":               {10, 10, 10},
		"one byte more":                   {10, 11, 4},
		"an odd limit":                    {7, 100, 9},
		"a limit of one":                  {1, 100, 9},
		"a limit of zero":                 {0, 100, 9},
		"pieces larger than the tail":     {10, 1000, 500},
		"halves of many chunks":           {6 * chunk, 40 * chunk, 1000},
		"halves that end within a chunk":  {3*chunk + 5, 17*chunk + 3, chunk},
		"within the limit, in one stroke": {8 * chunk, 7*chunk + 1, chunk},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			written := letters(one.total)
			pool := NewPool(64 << 20)
			stream := NewStream(pool, one.limit, func() {})
			stream.Fill(pool, &parts{written, one.piece})
			dropped := stream.Finish()
			head, tail := drain(stream.Next), drain(stream.Last)
			first := min(one.total, one.limit-one.limit/2)
			last := min(one.total-first, one.limit/2)
			if !bytes.Equal(head, written[:first]) || !bytes.Equal(tail, written[one.total-last:]) {
				t.Fatalf("kept %d and %d bytes, or the wrong ones; not %d and %d", len(head), len(tail), first, last)
			}
			if dropped != int64(one.total-first-last) {
				t.Fatalf("dropped %d, not %d", dropped, one.total-first-last)
			}
			if taken := pool.taken.Load(); taken != 0 {
				t.Fatalf("%d chunks were not given back", taken)
			}
		})
	}
}

func TestSentBytesMakeNoRoomForMore(t *testing.T) {
	pool := NewPool(1 << 20)
	stream := NewStream(pool, 8, func() {})
	stream.take([]byte("abcd"))
	if head := drain(stream.Next); string(head) != "abcd" {
		t.Fatalf("%q", head)
	}
	stream.take([]byte("efghijkl"))
	if head := drain(stream.Next); len(head) > 0 {
		t.Fatalf("%q is more than the first half", head)
	}
	if dropped, tail := stream.Finish(), drain(stream.Last); dropped != 4 || string(tail) != "ijkl" {
		t.Fatalf("dropped %d, kept %q", dropped, tail)
	}
}

func TestManyStreamsShareTheMemory(t *testing.T) {
	const streams = 64
	pool := NewPool(10 * ChunkSize)
	var all []*Stream
	written := letters(20 * ChunkSize)
	for range streams {
		stream := NewStream(pool, 16<<20, func() {})
		stream.Fill(pool, &parts{written, ChunkSize})
		stream.take([]byte("the end"))
		all = append(all, stream)
	}
	if taken := pool.taken.Load(); taken > 10+streams {
		t.Fatalf("%d chunks in use: more than the pool and one each", taken)
	}
	for _, stream := range all {
		dropped := stream.Finish()
		head, tail := drain(stream.Next), drain(stream.Last)
		if sum := dropped + int64(len(head)+len(tail)); sum != int64(len(written)+len("the end")) {
			t.Fatalf("%d bytes accounted for", sum)
		}
		if !bytes.HasPrefix(written, head) || !bytes.HasSuffix(tail, []byte("the end")) {
			t.Fatal("what was kept isn't the beginning and the end")
		}
	}
	if taken := pool.taken.Load(); taken != 0 {
		t.Fatalf("%d chunks were not given back", taken)
	}
}

func TestADeafStreamKeepsNothing(t *testing.T) {
	pool := NewPool(1 << 20)
	stream := NewStream(pool, 100, func() {})
	stream.take([]byte("before"))
	stream.Free()
	stream.Fill(pool, strings.NewReader("after"))
	if head := drain(stream.Next); len(head) > 0 || !stream.Closed() || pool.taken.Load() != 0 {
		t.Fatalf("%q kept", head)
	}
}
