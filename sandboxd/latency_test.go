package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkExec measures one command after another over one connection, from the call to the last line:
// go test -run '^$' -bench Exec .
func BenchmarkExec(b *testing.B) {
	for name, body := range map[string]string{"command": `{"command":["/bin/true"]}`, "shell": `{"shell":"true"}`} {
		b.Run(name, func(b *testing.B) {
			d := asAny(b)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if status, said := d.call(http.MethodPost, "/v1/exec", strings.NewReader(body)); status != 200 || !strings.Contains(said, `"code":0`) {
					b.Fatal(status, said)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			for name, share := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99} {
				b.ReportMetric(took[int(share*float64(len(took)-1))].Seconds()*1000, name)
			}
		})
	}
}
