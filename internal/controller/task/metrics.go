package task

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Metrics are the controller's counters. The methods of a nil Metrics do nothing.
type Metrics struct {
	attempts       *prometheus.CounterVec
	transitions    *prometheus.CounterVec
	recordFailures prometheus.Counter
}

// NewMetrics returns metrics registered with registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_task_attempts_total", Help: "Pods started for tasks, by what triggered them.",
		}, []string{"trigger"}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clew_task_transitions_total", Help: "Transitions of tasks, by reason.",
		}, []string{"reason"}),
		recordFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "clew_history_record_failures_total", Help: "Failures to copy transitions to the history store.",
		}),
	}
	registerer.MustRegister(m.attempts, m.transitions, m.recordFailures)
	return m
}

// attempt counts a started pod, of the newest attempt.
func (m *Metrics) attempt(task *v1alpha1.Task) {
	if n := len(task.Status.Attempts); m != nil && n > 0 {
		m.attempts.WithLabelValues(string(task.Status.Attempts[n-1].Trigger)).Inc()
	}
}

// transition counts a transition.
func (m *Metrics) transition(reason string) {
	if m != nil {
		m.transitions.WithLabelValues(reason).Inc()
	}
}

// recordFailed counts a failed call of the history store.
func (m *Metrics) recordFailed() {
	if m != nil {
		m.recordFailures.Inc()
	}
}
