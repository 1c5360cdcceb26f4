package task

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Metrics counts what the controller does. A nil Metrics counts nothing.
type Metrics struct {
	attempts       *prometheus.CounterVec
	transitions    *prometheus.CounterVec
	recordFailures prometheus.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_task_attempts_total", Help: "Pods started for tasks, by what triggered them.",
		}, []string{"trigger"}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_task_transitions_total", Help: "Transitions of tasks, by reason.",
		}, []string{"reason"}),
		recordFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clew_history_record_failures_total", Help: "Failed tries to copy transitions to the history store.",
		}),
	}
	registerer.MustRegister(m.attempts, m.transitions, m.recordFailures)
	return m
}

func (m *Metrics) attempt(task *v1alpha1.Task) {
	if n := len(task.Status.Attempts); m != nil && n > 0 {
		m.attempts.WithLabelValues(string(task.Status.Attempts[n-1].Trigger)).Inc()
	}
}

func (m *Metrics) transition(reason string) {
	if m != nil {
		m.transitions.WithLabelValues(reason).Inc()
	}
}

func (m *Metrics) recordFailed() {
	if m != nil {
		m.recordFailures.Inc()
	}
}
