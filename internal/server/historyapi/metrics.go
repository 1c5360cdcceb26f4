package historyapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_history_api_requests_total", Help: "Requests to the history API by resource and HTTP code.",
		}, []string{"resource", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "clew_history_api_request_duration_seconds", Help: "Time to answer requests to the history API.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}, []string{"resource"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.requests, m.duration)
	}
	return m
}

func (m *metrics) observe(resource string, code int, took time.Duration) {
	m.requests.WithLabelValues(resource, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(resource).Observe(took.Seconds())
}
