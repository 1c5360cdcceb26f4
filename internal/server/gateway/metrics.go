package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// metrics counts requests; it is an interceptor. Requests refused by authentication do
// not reach it and are counted there.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	records  prometheus.Counter
	streams  prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_gateway_requests_total", Help: "Requests of daemons by procedure and code.",
		}, []string{"procedure", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "clew_gateway_request_duration_seconds", Help: "Time to answer the unary requests of daemons.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}, []string{"procedure"}),
		records: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clew_gateway_records_total", Help: "Records that daemons sent and that are stored, repeated ones included.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "clew_gateway_command_streams", Help: "Daemons that hold a stream of commands.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.requests, m.duration, m.records, m.streams)
	}
	return m
}

func (m *metrics) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		response, err := next(ctx, req)
		procedure := nameOf(req.Spec())
		m.duration.WithLabelValues(procedure).Observe(time.Since(start).Seconds())
		m.count(procedure, err)
		return response, err
	}
}

func (m *metrics) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		m.count(nameOf(conn.Spec()), err)
		return err
	}
}

func (m *metrics) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (m *metrics) count(procedure string, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.requests.WithLabelValues(procedure, code).Inc()
}

// procedureOf returns the name of the procedure that a request calls, or an empty string
// if there is none of that name.
func procedureOf(r *http.Request) string {
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	service := daemonv1.File_v1_daemon_proto.Services().ByName("DaemonService")
	if service.Methods().ByName(protoreflect.Name(name)) == nil {
		return ""
	}
	return name
}

func nameOf(spec connect.Spec) string {
	return spec.Procedure[strings.LastIndex(spec.Procedure, "/")+1:]
}
